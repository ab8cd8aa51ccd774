//! Families without a reference file: tiny vocabularies whose ids are worked out by
//! hand or, for Unigram, agree with Hugging Face's `tokenizers`.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_loader::gguf::{Array, Metadata, StringTable, Value};
use emel_model::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer, TokenizerError};
use emel_tests::programs::thread_seconds;
use proptest::prelude::*;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

const WHOLE: DecodeOptions = DecodeOptions {
    special: true,
    from_start: true,
};

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

/// A vocabulary of (text, kind, score).
fn metadata(model: &str, tokens: &[(&str, i32, f32)]) -> Metadata {
    let mut table = StringTable::default();
    for (text, ..) in tokens {
        table.push(text.as_bytes());
    }
    let kinds = tokens.iter().map(|token| token.1).collect();
    let scores = tokens.iter().map(|token| token.2).collect();
    let mut metadata = Metadata::default();
    for (key, value) in [
        ("model", Value::String(model.into())),
        ("tokens", Value::Array(Array::String(table))),
        ("token_type", Value::Array(Array::I32(kinds))),
        ("scores", Value::Array(Array::F32(scores))),
    ] {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    }
    metadata
}

fn set(metadata: &mut Metadata, key: &str, value: Value) {
    metadata.insert(format!("tokenizer.ggml.{key}"), value);
}

fn build(mut metadata: Metadata) -> Tokenizer {
    Tokenizer::from_metadata(&mut metadata).unwrap()
}

fn unigram() -> Metadata {
    let pieces = [
        ("▁", -2.0),
        ("h", -5.0),
        ("e", -5.0),
        ("l", -5.0),
        ("o", -5.0),
        ("he", -4.0),
        ("ll", -4.5),
        ("hello", -9.0),
        ("▁hello", -8.5),
        ("▁he", -4.5),
        ("llo", -6.0),
        ("w", -5.5),
        ("or", -4.0),
        ("ld", -4.2),
        ("world", -12.5),
        ("é", -7.0),
    ];
    let mut tokens = vec![
        ("<pad>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<unk>", UNKNOWN, 0.0),
    ];
    tokens.extend(pieces.map(|(text, score)| (text, NORMAL, score)));
    let mut metadata = metadata("t5", &tokens);
    set(&mut metadata, "add_space_prefix", Value::Bool(true));
    set(&mut metadata, "remove_extra_whitespaces", Value::Bool(true));
    metadata
}

/// Each byte as Python escapes it, then longer texts.
fn rwkv() -> Metadata {
    let bytes: Vec<String> = (0..=255).map(|byte| format!("\\x{byte:02x}")).collect();
    let mut tokens = vec![("<s>", CONTROL, 0.0)];
    tokens.extend(bytes.iter().map(|text| (text.as_str(), NORMAL, 0.0)));
    let longer = [
        "he",
        "hello",
        "\\n\\n",
        "\\xe6\\x97\\xa5",
        "\\\\t",
        "helium",
    ];
    tokens.extend(longer.map(|text| (text, NORMAL, 0.0)));
    metadata("rwkv", &tokens)
}

fn ranked(model: &str) -> Metadata {
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec![
        ("<pad>", CONTROL, 0.0),
        ("<eos>", CONTROL, 0.0),
        ("<bos>", CONTROL, 0.0),
    ];
    tokens.extend(bytes.iter().map(|text| (text.as_str(), BYTE, 0.0)));
    let pieces = [
        "\n", "\n\n", "▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁▁", "x",
    ];
    tokens.extend(pieces.map(|text| (text, NORMAL, 0.0)));
    let mut metadata = metadata(model, &tokens);
    let mut merges = StringTable::default();
    for merge in ["h e", "l l", "he ll", "hell o", "▁ hello", "▁ ▁"] {
        merges.push(merge.as_bytes());
    }
    set(&mut metadata, "merges", Value::Array(Array::String(merges)));
    set(&mut metadata, "bos_token_id", Value::Unsigned(2));
    set(&mut metadata, "eos_token_id", Value::Unsigned(1));
    set(&mut metadata, "add_bos_token", Value::Bool(false));
    metadata
}

fn word_piece() -> Metadata {
    let tokens = [
        ("[PAD]", CONTROL),
        ("[UNK]", CONTROL),
        ("[CLS]", CONTROL),
        ("[SEP]", CONTROL),
        ("▁un", NORMAL),
        ("▁aff", NORMAL),
        ("able", NORMAL),
        ("aff", NORMAL),
        ("▁,", NORMAL),
        ("▁語", NORMAL),
        ("▁ä", NORMAL),
        ("▁Un", NORMAL),
    ];
    let mut metadata = metadata("bert", &tokens.map(|(text, kind)| (text, kind, 0.0)));
    for (key, id) in [("unknown", 1), ("cls", 2), ("seperator", 3)] {
        set(
            &mut metadata,
            &format!("{key}_token_id"),
            Value::Unsigned(id),
        );
    }
    metadata
}

#[test]
fn unigram_takes_the_most_probable_cut() {
    let tokenizer = build(unigram());
    for (text, ids) in [
        ("hello", &[11][..]),
        ("hello world", &[11, 3, 17]),
        ("hell", &[12, 9]),
        ("  hello   he ", &[11, 12]),
        ("héllo", &[3, 4, 18, 13]),
        ("xyz hello", &[3, 2, 11]),
        ("日本 xx", &[3, 2, 3, 2]),
        ("oo", &[3, 7, 7]),
        ("", &[]),
    ] {
        assert_eq!(tokenizer.encode(text, PLAIN), ids, "{text:?}");
    }
    let with_end = tokenizer.encode("hello", EncodeOptions::default());
    assert_eq!(with_end, [11, 1]);
    assert_eq!(tokenizer.decode(&with_end, WHOLE), "hello</s>");
    assert_eq!(tokenizer.encode_bytes(b"hello\xffhe", PLAIN), [11, 2, 12]);
}

#[test]
fn unigram_follows_the_table_of_replacements() {
    // A double array in which `X` becomes `he`: the root's children are at 0x100 ^ byte.
    let mut nodes = vec![0u32; 0x15a];
    nodes[0] = 0x100 << 10;
    nodes[0x158] = 1 << 10 | 1 << 8 | u32::from(b'X');
    nodes[0x159] = 1 << 31;
    let mut bytes = (nodes.len() as u32 * 4).to_le_bytes().to_vec();
    bytes.extend(nodes.iter().flat_map(|node| node.to_le_bytes()));
    bytes.extend(b"he\0");
    let table = |bytes: &[u8]| {
        let numbers = bytes.iter().map(|&byte| i32::from(byte as i8)).collect();
        Value::Array(Array::I32(numbers))
    };
    let mut metadata = unigram();
    set(&mut metadata, "precompiled_charsmap", table(&bytes));
    assert_eq!(build(metadata).encode("Xllo X", PLAIN), [11, 12]);
    for cut in [1, 3, 5, 100, bytes.len() - 1] {
        let mut metadata = unigram();
        set(&mut metadata, "precompiled_charsmap", table(&bytes[..cut]));
        let error = Tokenizer::from_metadata(&mut metadata).unwrap_err();
        assert!(
            error.to_string().contains("precompiled_charsmap"),
            "{error}"
        );
    }
}

/// A Unigram vocabulary with a double array in which `X` leads from 0x100 to a node with
/// children at `base`, whose leaf at `leaf` points to `replacement`.
fn unigram_with(base: u32, leaf: usize, replacement: &[u8]) -> Metadata {
    let mut nodes = vec![0u32; 0x15a];
    nodes[0] = 0x100 << 10;
    nodes[0x158] = base << 10 | 1 << 8 | u32::from(b'X');
    nodes[leaf] = 1 << 31;
    let mut bytes = (nodes.len() as u32 * 4).to_le_bytes().to_vec();
    bytes.extend(nodes.iter().flat_map(|node| node.to_le_bytes()));
    bytes.extend_from_slice(replacement);
    let numbers = bytes.iter().map(|&byte| i32::from(byte as i8)).collect();
    let mut metadata = unigram();
    let table = Value::Array(Array::I32(numbers));
    set(&mut metadata, "precompiled_charsmap", table);
    metadata
}

#[test]
fn a_table_of_replacements_with_a_loop_matches_256_bytes_at_most() {
    // `X` leads back to where it came from, so every run of it is in the table.
    let tokenizer = build(unigram_with(u32::from(b'X'), 0x100, b"he\0"));
    let ids = tokenizer.encode(&"X".repeat(600), PLAIN);
    assert_eq!(ids, build(unigram()).encode("hehehe", PLAIN));
}

#[test]
fn a_replacement_that_inflates_a_text_is_refused_or_not_followed() {
    let replaced = |bytes: usize| {
        let mut replacement = vec![b'l'; bytes];
        replacement.push(0);
        unigram_with(1, 0x159, &replacement)
    };
    let plain = build(unigram());
    let ids = build(replaced(16)).encode("X", PLAIN);
    assert_eq!(ids, plain.encode(&"l".repeat(16), PLAIN));
    assert_eq!(
        build(replaced(17)).encode("X", PLAIN),
        plain.encode("X", PLAIN)
    );
    build(replaced(256));
    let error = Tokenizer::from_metadata(&mut replaced(257)).unwrap_err();
    assert!(error.to_string().contains("257 bytes"), "{error}");
}

#[test]
fn tokens_over_a_kibibyte_are_refused_where_texts_are_matched_by_prefix() {
    for model in ["t5", "rwkv", "bert"] {
        let build = |bytes: usize| {
            let long = "a".repeat(bytes);
            let tokens = [
                ("b", NORMAL, 0.0),
                ("<unk>", UNKNOWN, 0.0),
                (&long, NORMAL, 0.0),
            ];
            let mut metadata = metadata(model, &tokens);
            for key in ["bos", "eos", "unknown", "seperator"] {
                set(
                    &mut metadata,
                    &format!("{key}_token_id"),
                    Value::Unsigned(1),
                );
            }
            Tokenizer::from_metadata(&mut metadata)
        };
        assert!(build(1024).is_ok(), "{model}");
        let expected = TokenizerError::TokenLength {
            index: 2,
            found: 1025,
            maximum: 1024,
        };
        assert_eq!(build(1025).unwrap_err(), expected, "{model}");
    }
}

#[test]
fn rwkv_takes_the_longest_match_of_bytes() {
    let tokenizer = build(rwkv());
    let byte = |byte: u8| u32::from(byte) + 1;
    assert_eq!(tokenizer.encode("hello", PLAIN), [258]);
    assert_eq!(
        tokenizer.encode("helix\n\n\n", PLAIN),
        [257, byte(b'l'), byte(b'i'), byte(b'x'), 259, byte(b'\n')]
    );
    assert_eq!(tokenizer.encode("日\\t\t", PLAIN), [260, 261, byte(b'\t')]);
    assert_eq!(tokenizer.decode(&[260, 261, 258], WHOLE), "日\\thello");
}

#[test]
fn ranked_pieces_keep_newlines_apart_and_spell_the_rest() {
    for model in ["gemma4", "gpt2"] {
        let mut metadata = ranked(model);
        set(&mut metadata, "pre", Value::String("gemma4".into()));
        let tokenizer = build(metadata);
        let id = |text| tokenizer.token_id(text).unwrap();
        let ids = tokenizer.encode("hello hello\n\nhello  x€\n\n\n", EncodeOptions::default());
        let mut expected = vec![2];
        expected.extend(["hello", "▁hello", "\n\n", "hello", "▁▁", "x"].map(id));
        expected.extend(["<0xE2>", "<0x82>", "<0xAC>", "\n", "\n", "\n"].map(id));
        assert_eq!(ids, expected);
        assert_eq!(
            tokenizer.decode(&ids[1..], WHOLE),
            "hello hello\n\nhello  x€\n\n\n"
        );
    }
}

#[test]
fn word_pieces_are_the_longest_and_words_are_whole_or_unknown() {
    let tokenizer = build(word_piece());
    let ids = tokenizer.encode(
        "Unaffable, UNÄFF 語語 unx\u{200b}",
        EncodeOptions::default(),
    );
    assert_eq!(ids, [2, 4, 7, 6, 8, 4, 7, 9, 9, 1, 3]);
    let mut cased = word_piece();
    set(&mut cased, "normalizer.lowercase", Value::Bool(false));
    assert_eq!(build(cased).encode("Un ä un", PLAIN), [11, 10, 4]);
    assert_eq!(tokenizer.encode_bytes(b"un\xff un", PLAIN), [4, 4]);
}

#[test]
fn longer_arrays_are_tolerated_and_shorter_ones_are_not() {
    let kinds = |count| Value::Array(Array::I32(vec![NORMAL; count]));
    let count = 12;
    let mut longer = word_piece();
    set(&mut longer, "token_type", kinds(count + 5));
    assert_eq!(build(longer).vocabulary_size(), count);
    let mut shorter = word_piece();
    set(&mut shorter, "token_type", kinds(count - 1));
    let error = Tokenizer::from_metadata(&mut shorter).unwrap_err();
    assert!(error.to_string().contains("token_type` has 11"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_come_back_where_the_family_has_byte_tokens(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'h'), Just(b' ')], 0..60),
    ) {
        for tokenizer in [build(rwkv()), build(ranked("gemma4"))] {
            let ids = tokenizer.encode_bytes(&bytes, PLAIN);
            let spelt: Vec<u8> = ids
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(id, true))
                .collect();
            prop_assert_eq!(&spelt, &bytes);
        }
    }

    #[test]
    fn any_bytes_are_encoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        for tokenizer in [build(unigram()), build(word_piece())] {
            let ids = tokenizer.encode_bytes(&bytes, EncodeOptions::default());
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_size()));
            tokenizer.decode(&ids, WHOLE);
        }
    }

    #[test]
    fn any_text_and_its_bytes_have_the_same_ids(text in any::<String>()) {
        for metadata in [rwkv(), ranked("gemma4"), unigram(), word_piece()] {
            let tokenizer = build(metadata);
            prop_assert_eq!(
                tokenizer.encode(&text, PLAIN),
                tokenizer.encode_bytes(text.as_bytes(), PLAIN)
            );
        }
    }

    #[test]
    fn any_bytes_as_vocabulary_give_a_tokenizer_or_an_error(
        tokens in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 1..40),
        table in prop::collection::vec(-128i32..128, 0..40),
        scores in prop::collection::vec(any::<f32>(), 40),
        text in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        for model in ["gemma4", "bert", "t5", "rwkv"] {
            let mut texts = StringTable::default();
            for token in &tokens {
                texts.push(token);
            }
            let mut metadata = metadata(model, &[]);
            metadata.remove("tokenizer.ggml.token_type");
            set(&mut metadata, "tokens", Value::Array(Array::String(texts)));
            set(&mut metadata, "merges", Value::Array(Array::String(StringTable::default())));
            set(&mut metadata, "scores", Value::Array(Array::F32(scores.clone())));
            if table.len() > 20 {
                set(&mut metadata, "precompiled_charsmap", Value::Array(Array::I32(table.clone())));
            }
            if let Ok(tokenizer) = Tokenizer::from_metadata(&mut metadata) {
                let ids = tokenizer.encode_bytes(&text, EncodeOptions::default());
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokens.len()));
                tokenizer.decode(&ids, WHOLE);
            }
        }
    }
}

#[test]
fn ten_megabytes_take_time_in_proportion() {
    for metadata in [rwkv(), ranked("gemma4"), unigram(), word_piece()] {
        let tokenizer = build(metadata);
        for unit in ["h", " ", "hello ", "é", "\n"] {
            let time = |bytes: usize| {
                let text = unit.repeat(bytes / unit.len());
                thread_seconds(|| drop(tokenizer.encode(&text, PLAIN)))
            };
            // Quadratic work would take a hundred times as long, not ten.
            let (one, ten) = (time(1_000_000), time(10_000_000));
            println!("{unit:?}: {one:.3} s and {ten:.3} s");
            assert!(ten < 40.0 * one.max(0.02), "{unit:?}: {one} s and {ten} s");
        }
    }
}
