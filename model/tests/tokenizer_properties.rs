//! What holds for every text, every sequence of ids and every vocabulary.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_loader::gguf::{Array, Metadata, StringTable, Value};
use emel_model::tokenizer::{
    DecodeOptions, Detokenizer, EncodeOptions, Tokenizer, TokenizerError, TokenizerWarning,
};
use proptest::prelude::*;

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

const PARSED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

fn string(text: &str) -> Value {
    Value::String(text.into())
}

fn strings(texts: &[String]) -> Value {
    let mut table = StringTable::default();
    for text in texts {
        table.push(text.as_bytes());
    }
    Value::Array(Array::String(table))
}

fn metadata(entries: Vec<(&str, Value)>) -> Metadata {
    let mut metadata = Metadata::default();
    for (key, value) in entries {
        metadata.insert(key.to_owned(), value);
    }
    metadata
}

/// A byte-level vocabulary: 256 bytes in GPT-2's alphabet, then merges of them, then
/// special tokens.
fn byte_pair(pre: &str) -> Metadata {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
    let mut shifted = (0x100..).filter_map(char::from_u32);
    let character = |byte: u8| match printable(byte) {
        true => char::from(byte),
        false => shifted.next().unwrap(),
    };
    let mut tokens: Vec<String> = (0..=255).map(character).map(String::from).collect();
    let merges = [
        "h e", "l l", "he ll", "hell o", "Ġ hello", "Ã ©", "1 2", "12 3", "Ġ Ġ",
    ];
    let merges = merges.map(String::from);
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut kinds = vec![1; tokens.len()];
    tokens.extend(["<|a|>", "<|a|><|b|>", "<tool>", "<|im_end|>"].map(String::from));
    kinds.extend([CONTROL, CONTROL, USER_DEFINED, CONTROL]);
    metadata(vec![
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.pre", string(pre)),
        ("tokenizer.ggml.tokens", strings(&tokens)),
        ("tokenizer.ggml.merges", strings(&merges)),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.bos_token_id", Value::Unsigned(265)),
        ("tokenizer.ggml.eos_token_id", Value::Unsigned(268)),
    ])
}

/// A SentencePiece vocabulary: three special tokens, 256 bytes, some pieces.
fn sentence_piece() -> Metadata {
    let mut tokens = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut kinds = vec![2, CONTROL, CONTROL];
    let mut scores = vec![0.0; 3];
    for byte in 0..=255 {
        tokens.push(format!("<0x{byte:02X}>"));
        kinds.push(BYTE);
        scores.push(0.0);
    }
    for (rank, piece) in [
        "▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "é",
    ]
    .iter()
    .enumerate()
    {
        tokens.push((*piece).to_owned());
        kinds.push(1);
        scores.push(rank as f32 - 20.0);
    }
    metadata(vec![
        ("tokenizer.ggml.model", string("llama")),
        ("tokenizer.ggml.tokens", strings(&tokens)),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
    ])
}

fn build(mut metadata: Metadata) -> Tokenizer {
    Tokenizer::from_metadata(&mut metadata).unwrap()
}

fn whole(from_start: bool) -> DecodeOptions {
    DecodeOptions {
        special: true,
        from_start,
    }
}

fn stream(tokenizer: &Tokenizer, ids: &[u32], options: DecodeOptions) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, options);
    let mut text = String::new();
    for &id in ids {
        text.push_str(detokenizer.push(tokenizer, id));
    }
    text.push_str(detokenizer.finish());
    text
}

/// Texts with much of what these vocabularies and pre-tokenizers tell apart.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        any::<String>(),
        "[ \\t\\r\\n\u{a0}\u{3000}]{0,6}",
        "(hello| |é|12|3|'ll|<|a|>|<tool>|<\\|a\\|>){0,8}",
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

const PRES: [&str; 15] = [
    "default",
    "smollm",
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "gpt-4o",
    "tekken",
    "qwen35",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "glm4",
    "falcon",
    "kimi-k2",
    "youtu",
];

proptest! {
    #[test]
    fn byte_pair_texts_come_back_as_they_were(text in text()) {
        for pre in PRES {
            let tokenizer = build(byte_pair(pre));
            for options in [PLAIN, PARSED] {
                let ids = tokenizer.encode(&text, options);
                prop_assert_eq!(tokenizer.decode(&ids, whole(true)), text.as_str());
            }
        }
    }

    #[test]
    fn sentence_piece_texts_come_back_as_they_were(text in text()) {
        // The escaped form of a space is not told apart from a space.
        prop_assume!(!text.contains('▁'));
        let tokenizer = build(sentence_piece());
        let ids = tokenizer.encode(&text, PLAIN);
        prop_assert_eq!(tokenizer.decode(&ids, whole(true)), text);
    }

    #[test]
    fn any_ids_stream_to_the_text_of_their_bytes(
        ids in prop::collection::vec(prop_oneof![4 => 0u32..280, 1 => any::<u32>()], 0..40),
        special in any::<bool>(),
    ) {
        for tokenizer in [build(byte_pair("qwen2")), build(sentence_piece())] {
            let options = DecodeOptions { special, from_start: false };
            let bytes = ids.iter().flat_map(|&id| tokenizer.token_bytes(id, special));
            let bytes: Vec<u8> = bytes.collect();
            let expected = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(stream(&tokenizer, &ids, options), expected.as_ref());
            prop_assert_eq!(tokenizer.decode(&ids, options), expected.as_ref());
        }
    }

    #[test]
    fn any_bytes_as_vocabulary_give_a_tokenizer_or_an_error(
        tokens in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..40),
        merges in prop::collection::vec("[a-c ]{0,4}", 0..10),
        kinds in prop::collection::vec(-1i32..9, 0..40),
        bos in 0u64..50,
        text in text(),
    ) {
        for model in ["gpt2", "llama"] {
            let mut table = StringTable::default();
            for token in &tokens {
                table.push(token);
            }
            let mut metadata = metadata(vec![
                ("tokenizer.ggml.model", string(model)),
                ("tokenizer.ggml.tokens", Value::Array(Array::String(table))),
                ("tokenizer.ggml.merges", strings(&merges)),
                ("tokenizer.ggml.bos_token_id", Value::Unsigned(bos)),
            ]);
            if kinds.len() == tokens.len() {
                let kinds = Value::Array(Array::I32(kinds.clone()));
                metadata.insert("tokenizer.ggml.token_type".to_owned(), kinds);
            }
            if let Ok(tokenizer) = Tokenizer::from_metadata(&mut metadata) {
                let ids = tokenizer.encode(&text, EncodeOptions::default());
                tokenizer.decode(&ids, whole(true));
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokens.len()));
            }
        }
    }
}

#[test]
fn a_special_token_that_is_part_of_a_character_is_not_found_in_it() {
    let mut table = StringTable::default();
    for token in [&b"a"[..], &[0x87]] {
        table.push(token);
    }
    let kinds = Value::Array(Array::I32(vec![1, 4]));
    let mut metadata = metadata(vec![
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(table))),
        ("tokenizer.ggml.merges", strings(&[])),
        ("tokenizer.ggml.token_type", kinds),
    ]);
    let tokenizer = Tokenizer::from_metadata(&mut metadata).unwrap();
    // The last byte of this character is 0x87.
    let ids = tokenizer.encode("a\u{1ee47}a", EncodeOptions::default());
    assert_eq!(ids, [0, 0]);
}

#[test]
fn a_tokenizer_is_shared_between_threads() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    is_shared(&build(byte_pair("gpt-2")));
}

#[test]
fn merges_go_by_rank_and_special_tokens_longest_first() {
    let tokenizer = build(byte_pair("gpt-2"));
    let spelt = |text, options| {
        let ids = tokenizer.encode(text, options);
        let texts = ids.iter().map(|&id| tokenizer.decode(&[id], whole(false)));
        texts.collect::<Vec<_>>()
    };
    assert_eq!(spelt("hello hello", PLAIN), ["hello", " hello"]);
    assert_eq!(spelt("ello", PLAIN), ["e", "ll", "o"]);
    assert_eq!(spelt("<|a|><|b|><|a|>", PARSED), ["<|a|><|b|>", "<|a|>"]);
    assert_eq!(spelt("x<tool>", PLAIN), ["x", "<tool>"]);
    assert_eq!(spelt("<|a|>", PLAIN).len(), 5);
}

#[test]
fn characters_are_held_back_until_they_are_complete() {
    let tokenizer = build(byte_pair("gpt-2"));
    let mut detokenizer = Detokenizer::new(&tokenizer, DecodeOptions::default());
    let euro = tokenizer.encode("€", PLAIN);
    assert_eq!(euro.len(), 3);
    assert_eq!(detokenizer.push(&tokenizer, euro[0]), "");
    assert_eq!(detokenizer.push(&tokenizer, euro[1]), "");
    assert_eq!(detokenizer.push(&tokenizer, euro[2]), "€");
    assert_eq!(detokenizer.push(&tokenizer, euro[0]), "");
    assert_eq!(
        detokenizer.push(&tokenizer, u32::from(b'h' - b'!' + 33)),
        "\u{fffd}h"
    );
    assert_eq!(detokenizer.push(&tokenizer, euro[0]), "");
    assert_eq!(detokenizer.finish(), "\u{fffd}");
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn space_after_special_tokens_is_dropped_for_phi3_only() {
    let mut phi = sentence_piece();
    phi.insert("general.name".to_owned(), string("Phi-3 mini"));
    let (phi, other) = (build(phi), build(sentence_piece()));
    let end = other.token_id("</s>").unwrap();
    let hello = other.token_id("▁hello").unwrap();
    assert_eq!(phi.encode("</s> \n hello", PARSED), [end, hello]);
    assert!(other.encode("</s> \n hello", PARSED).len() > 2);
}

#[test]
fn bos_and_eos_are_added_as_the_file_says() {
    let flag = Value::Bool;
    let ends = |mut metadata: Metadata, bos: Option<bool>, eos: Option<bool>| {
        for (key, value) in [("bos", bos), ("eos", eos)] {
            if let Some(value) = value {
                metadata.insert(format!("tokenizer.ggml.add_{key}_token"), flag(value));
            }
        }
        let ids = build(metadata).encode("h", EncodeOptions::default());
        (ids[0], ids[ids.len() - 1])
    };
    let h = build(byte_pair("qwen2")).encode("h", PLAIN)[0];
    assert_eq!(ends(byte_pair("qwen2"), None, None), (h, h));
    assert_eq!(ends(byte_pair("llama-bpe"), None, None), (265, h));
    assert_eq!(ends(byte_pair("llama-bpe"), Some(false), None), (h, h));
    assert_eq!(ends(byte_pair("qwen2"), Some(true), Some(true)), (265, 268));
    assert_eq!(ends(sentence_piece(), None, Some(true)), (1, 2));
    assert_ne!(ends(sentence_piece(), Some(false), None).0, 1);
}

#[test]
fn turns_end_with_the_eos_and_with_tokens_known_by_text() {
    let tokenizer = build(byte_pair("qwen2"));
    assert!(tokenizer.is_end_of_generation(tokenizer.token_id("<|im_end|>").unwrap()));
    assert!(!tokenizer.is_end_of_generation(tokenizer.token_id("<|a|>").unwrap()));
    let mut other = byte_pair("qwen2");
    other.insert(
        "tokenizer.ggml.eot_token_id".to_owned(),
        Value::Unsigned(265),
    );
    assert!(build(other).is_end_of_generation(265));
    assert!(!tokenizer.is_end_of_generation(u32::MAX));
}

#[test]
fn an_unknown_pre_tokenizer_is_a_warning() {
    let tokenizer = build(byte_pair("made-up"));
    let found = "made-up".to_owned();
    let warning = TokenizerWarning::UnknownPreTokenizer { found };
    assert_eq!(tokenizer.warnings(), [warning]);
    let text = "hello 12 §";
    let ids = tokenizer.encode(text, PLAIN);
    assert_eq!(ids, build(byte_pair("default")).encode(text, PLAIN));
}

#[test]
fn bad_metadata_is_an_error_that_names_the_key() {
    let numbers = |numbers: &[i32]| Value::Array(Array::I32(numbers.to_vec()));
    let cases: [(&str, Value, &str); 7] = [
        (
            "model",
            string("plamo2"),
            "`plamo2`, which is not supported; supported are gpt2, llama,",
        ),
        (
            "model",
            Value::Bool(true),
            "`tokenizer.ggml.model` holds the boolean true",
        ),
        (
            "tokens",
            numbers(&[1]),
            "`tokenizer.ggml.tokens` holds an array",
        ),
        (
            "tokens",
            strings(&[]),
            "`tokenizer.ggml.tokens` holds 0 tokens",
        ),
        (
            "token_type",
            numbers(&[1]),
            "`tokenizer.ggml.token_type` has 1 elements",
        ),
        (
            "scores",
            Value::Array(Array::F32(vec![0.0])),
            "`tokenizer.ggml.scores` has 1 elements",
        ),
        (
            "merges",
            strings(&["ab".to_owned()]),
            "`tokenizer.ggml.merges` rule 0 is \"ab\"",
        ),
    ];
    for (key, value, expected) in cases {
        let mut metadata = byte_pair("qwen2");
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
        let error = Tokenizer::from_metadata(&mut metadata).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    for key in ["model", "tokens", "merges"] {
        let mut metadata = byte_pair("qwen2");
        let key = format!("tokenizer.ggml.{key}");
        metadata.remove(&key);
        let error = Tokenizer::from_metadata(&mut metadata).unwrap_err();
        assert!(matches!(error, TokenizerError::Metadata(_)));
        assert!(error.to_string().contains(&key), "{error}");
    }
    let mut metadata = byte_pair("qwen2");
    metadata.remove("tokenizer.ggml.eos_token_id");
    metadata.insert("tokenizer.ggml.add_eos_token".to_owned(), Value::Bool(true));
    let error = Tokenizer::from_metadata(&mut metadata).unwrap_err();
    assert!(
        error.to_string().contains("tokenizer.ggml.eos_token_id"),
        "{error}"
    );
}

#[test]
fn a_special_token_that_is_not_in_the_vocabulary_is_as_if_it_were_not_named() {
    for (value, found) in [
        (Value::Unsigned(1 << 20), "1048576"),
        (Value::Signed(-1), "-1"),
    ] {
        let mut without = byte_pair("qwen2");
        without.remove("tokenizer.ggml.eos_token_id");
        let without = Tokenizer::from_metadata(&mut without).unwrap();
        let mut metadata = byte_pair("qwen2");
        metadata.insert("tokenizer.ggml.eos_token_id".to_owned(), value);
        let tokenizer = Tokenizer::from_metadata(&mut metadata).unwrap();
        assert_eq!(tokenizer.eos(), without.eos());
        let warnings: Vec<String> = tokenizer
            .warnings()
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = format!("`tokenizer.ggml.eos_token_id` is {found}, which is no id below");
        assert!(
            warnings.iter().any(|warning| warning.contains(&expected)),
            "{warnings:?}"
        );
    }
}

#[test]
fn repeated_and_empty_tokens_are_tolerated_and_the_first_one_counts() {
    let mut metadata = byte_pair("gpt-2");
    let mut tokens: Vec<String> = ["a", "", "a", "", "b"].map(String::from).to_vec();
    tokens.resize(269, String::new());
    metadata.insert("tokenizer.ggml.tokens".to_owned(), strings(&tokens));
    let tokenizer = build(metadata);
    let repeated = TokenizerWarning::RepeatedTokens { count: 1 };
    assert!(tokenizer.warnings().contains(&repeated));
    assert_eq!(tokenizer.encode("aab", PLAIN), [0, 0, 4]);
    assert_eq!(tokenizer.decode(&[0, 1, 2, 3, 4], whole(true)), "aab");
}

#[test]
fn merges_of_unknown_parts_are_left_out_with_a_warning() {
    let mut metadata = byte_pair("gpt-2");
    let merges = ["xx y", "h e", "q z"].map(String::from);
    metadata.insert("tokenizer.ggml.merges".to_owned(), strings(&merges));
    let tokenizer = build(metadata);
    let warning = TokenizerWarning::UnusableMerges { count: 2 };
    assert_eq!(tokenizer.warnings(), [warning]);
    assert_eq!(tokenizer.encode("he", PLAIN).len(), 1);
}
