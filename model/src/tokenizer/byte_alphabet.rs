//! GPT-2's printable alphabet for bytes.
//!
//! Byte-level vocabularies are stored as text, so every byte has a printable
//! character: itself where it is printable in Latin-1, else the next unused
//! character from U+0100 on, in the order of the bytes.

/// Whether a byte stands for itself.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const CHARACTERS: [char; 256] = {
    let mut characters = ['\0'; 256];
    let mut shifted = 0;
    let mut byte = 0;
    while byte < 256 {
        characters[byte] = if is_printable(byte as u8) {
            byte as u8 as char
        } else {
            shifted += 1;
            SHIFTED_CHARACTERS[shifted - 1]
        };
        byte += 1;
    }
    characters
};

/// Bytes that are not printable: 0x00–0x20, 0x7f–0xa0 and 0xad.
const SHIFTED_COUNT: usize = 33 + 34 + 1;

const SHIFTED_CHARACTERS: [char; SHIFTED_COUNT] = {
    let mut characters = ['\0'; SHIFTED_COUNT];
    let mut index = 0;
    while index < SHIFTED_COUNT {
        characters[index] = match char::from_u32(0x100 + index as u32) {
            Some(character) => character,
            None => panic!("U+0100 to U+0143 are characters"),
        };
        index += 1;
    }
    characters
};

const SHIFTED_BYTES: [u8; SHIFTED_COUNT] = {
    let mut bytes = [0; SHIFTED_COUNT];
    let mut shifted = 0;
    let mut byte = 0;
    while byte < 256 {
        if !is_printable(byte as u8) {
            bytes[shifted] = byte as u8;
            shifted += 1;
        }
        byte += 1;
    }
    bytes
};

/// The character that stands for `byte`.
pub(super) fn character(byte: u8) -> char {
    CHARACTERS[usize::from(byte)]
}

/// The byte that `character` stands for, if it is in the alphabet.
pub(super) fn byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => SHIFTED_BYTES.get((code - 0x100) as usize).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back_from_its_character() {
        for value in 0..=255 {
            assert_eq!(byte(character(value)), Some(value));
        }
    }

    #[test]
    fn a_space_is_g_with_a_dot_and_a_newline_c_with_a_dot() {
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
        assert_eq!(character(0xad), 'Ń');
        assert_eq!(character(b'a'), 'a');
    }

    #[test]
    fn characters_outside_the_alphabet_stand_for_no_byte() {
        for outside in [' ', '\u{ad}', '\u{144}', '▁', '😀'] {
            assert_eq!(byte(outside), None);
        }
    }
}
