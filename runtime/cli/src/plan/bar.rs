//! The budget as a line of blocks.

/// Characters of the line between its ends.
const CELLS: usize = 76;

/// The characters of the shares in order, and of what is free.
pub(super) type Characters = [char; SHARES + 1];

/// For a terminal.
pub(super) const BLOCKS: Characters = ['█', '▓', '▒', '░', '▚', '▪', '·'];
/// For a file or a pipe.
pub(super) const PLAIN: Characters = ['#', 'x', '%', '+', '=', 'o', '.'];

/// Parts that are shown apart.
const SHARES: usize = 6;

/// A budget, and what parts of it are for.
pub(super) struct Bar {
    pub(super) budget_bytes: u64,
    /// Names and bytes.
    pub(super) shares: [(&'static str, u64); SHARES],
}

impl Bar {
    /// The line, and one that says what its characters stand for. Parts that are too small for a
    /// character are left out of both.
    pub(super) fn text(&self, characters: Characters) -> String {
        let (mut line, mut legend) = (String::new(), Vec::new());
        let mut bytes = 0;
        for ((name, share), character) in self.shares.iter().zip(characters) {
            let begin = self.cell(bytes);
            bytes += share;
            let cells = self.cell(bytes) - begin;
            line.extend(std::iter::repeat_n(character, cells));
            if cells > 0 {
                legend.push(format!("{character} {name}"));
            }
        }
        let free = CELLS - self.cell(bytes);
        line.extend(std::iter::repeat_n(characters[SHARES], free));
        if free > 0 {
            legend.push(format!("{} free", characters[SHARES]));
        }
        format!("  [{line}]\n   {}\n", legend.join("  "))
    }

    /// The cell that `bytes` of the budget reach to.
    fn cell(&self, bytes: u64) -> usize {
        let budget_bytes = self.budget_bytes.max(1) as f64;
        let cells = bytes as f64 / budget_bytes * CELLS as f64;
        (cells.round() as usize).min(CELLS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(budget_bytes: u64, bytes: [u64; SHARES]) -> (String, String) {
        let names = [
            "weights",
            "experts",
            "KV cache",
            "activations",
            "ring",
            "other",
        ];
        let mut shares = names.map(|name| (name, 0));
        for (share, bytes) in shares.iter_mut().zip(bytes) {
            share.1 = bytes;
        }
        let text = Bar {
            budget_bytes,
            shares,
        }
        .text(PLAIN);
        let (line, legend) = text.split_once('\n').unwrap();
        (line.to_owned(), legend.trim_end().to_owned())
    }

    #[test]
    fn cells_are_in_proportion_and_fill_the_line() {
        let (line, legend) = lines(76, [38, 0, 19, 0, 1, 9]);
        let expected = [("#", 38), ("%", 19), ("=", 1), ("o", 9), (".", 9)];
        let expected: String = expected.map(|(it, count)| it.repeat(count)).concat();
        assert_eq!(line, format!("  [{expected}]"));
        assert_eq!(legend, "   # weights  % KV cache  = ring  o other  . free");
    }

    #[test]
    fn every_line_fits_80_columns_whatever_the_shares() {
        for bytes in [
            [0; SHARES],
            [10; SHARES],
            [1000, 1, 1, 1, 1, 1],
            [u64::MAX / 8; SHARES],
        ] {
            for budget_bytes in [0, 60, 100, u64::MAX] {
                let (line, legend) = lines(budget_bytes, bytes);
                assert_eq!(line.chars().count(), 80);
                assert!(legend.chars().count() <= 80, "{legend}");
            }
        }
    }
}
