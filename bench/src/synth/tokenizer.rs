//! A byte-level vocabulary of any size: the 256 bytes, an end of text, one merge, and words that
//! no merge leads to.

use emel_tests::gguf_writer::Field;

/// The id of the token that ends a text.
const END_OF_TEXT: u32 = 256;

/// Tokens that every vocabulary has: the bytes, the end of text, and the merge's result.
pub(super) const TOKENS_MIN: usize = 258;

/// GGUF's kinds of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Metadata for `count` tokens, at least [`TOKENS_MIN`].
pub(super) fn fields(count: usize, pre_tokenizer: &str) -> Vec<(String, Field)> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| character(byte).to_string()).collect();
    tokens.push("<|endoftext|>".to_owned());
    tokens.push("\u{120}t".to_owned());
    tokens.extend((TOKENS_MIN..count).map(|id| format!("\u{120}w{id}")));
    let mut kinds = vec![NORMAL; tokens.len()];
    kinds[END_OF_TEXT as usize] = CONTROL;
    let field = |key: &str, field| (format!("tokenizer.ggml.{key}"), field);
    vec![
        field("model", Field::string("gpt2")),
        field("pre", Field::string(pre_tokenizer)),
        field("tokens", Field::strings(&tokens)),
        field("token_type", Field::i32s(&kinds)),
        field("merges", Field::strings(["\u{120} t"])),
        field("bos_token_id", Field::U32(END_OF_TEXT)),
        field("eos_token_id", Field::U32(END_OF_TEXT)),
        field("add_bos_token", Field::Bool(false)),
    ]
}

/// GPT-2's character for a byte: itself where it is visible Latin-1, else the next of those from
/// U+0100 on.
fn character(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    if is_visible(byte) {
        return char::from(byte);
    }
    let hidden_before = (0..byte).filter(|&it| !is_visible(it)).count() as u32;
    char::from_u32(0x100 + hidden_before).expect("U+0100 and the 67 after it are characters")
}
