//! Rotations in sections for time, height, width and one more, of models that also see images.
//! <https://arxiv.org/abs/2409.12191>

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;

/// How pairs are dealt out to the sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dealing {
    /// One section after the other.
    InRuns,
    /// In turns, as long as a section has pairs.
    InTurns,
}

/// Checks that `rope.dimension_sections` changes nothing for text. A token of a text has the same
/// position in the first three sections, so that they do not show; in the fourth it has none.
///
/// # Errors
/// When a pair that turns would be in the fourth section.
pub(super) fn check_sections(
    keys: &Keys<'_>,
    shape: &Hyperparameters,
    dealing: Dealing,
) -> Result<(), ModelError> {
    let suffix = "rope.dimension_sections";
    let Some(found) = keys.i32s(suffix)? else {
        return Ok(());
    };
    let refuse = |expected: &str| Err(keys.refuse(suffix, format!("{found:?}"), expected));
    let Ok(sections) = <[i32; 4]>::try_from(found) else {
        return refuse("four numbers");
    };
    // Otherwise the rotation is the usual one.
    if dealing == Dealing::InRuns && (sections[0] <= 0 || sections[1] <= 0) {
        return Ok(());
    }
    let pairs = sections.iter().map(|&pairs| i64::from(pairs)).sum::<i64>();
    if sections.iter().any(|&pairs| pairs < 0) || !(1..=1 << 16).contains(&pairs) {
        return refuse("pairs of dimensions");
    }
    let [time, height, width, _] = sections.map(i64::from);
    let is_text = |pair: i64| match dealing {
        Dealing::InRuns => pair < time + height + width,
        Dealing::InTurns => pair / 3 < [time, height, width][(pair % 3) as usize],
    };
    let turning = pairs.min((shape.rope_width / 2) as i64);
    if !(0..turning).all(is_text) {
        return refuse("no pair in the fourth section, which has no position in a text");
    }
    Ok(())
}
