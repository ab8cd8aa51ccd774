//! Opening model files, good and bad.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use emel_loader::gguf::{Array, Catalog, FileIdentity, GgufError, TensorType, Value};
use emel_tests::gguf_writer::{Field, GgufWriter};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/arch")
        .join(name)
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Two tensors of 32 and 64 bytes.
fn small_model() -> GgufWriter {
    GgufWriter::new("llama")
        .f32_tensor("first", &[8], &[1.0; 8])
        .f32_tensor("second", &[8, 2], &[2.0; 16])
}

fn open_bytes(bytes: &[u8]) -> Result<Catalog, GgufError> {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    Catalog::open(&path)
}

/// The message for these bytes, which must be one line that names the file.
fn message(bytes: &[u8]) -> String {
    one_line(open_bytes(bytes).unwrap_err(), "model.gguf")
}

fn one_line(error: GgufError, file: &str) -> String {
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message:?}");
    assert!(message.contains(file), "{message:?} names no file");
    message
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

/// The position just after the first place where `pattern` stands.
fn after(bytes: &[u8], pattern: &[u8]) -> usize {
    let place = bytes.windows(pattern.len()).position(|it| it == pattern);
    place.unwrap() + pattern.len()
}

// Good files.

#[test]
fn a_model_written_by_llama_cpp_is_read_whole() {
    let path = fixture("llama.gguf");
    let catalog = Catalog::open(&path).unwrap();
    let metadata = catalog.metadata();
    assert_eq!(metadata.str("general.architecture").unwrap(), Some("llama"));
    let embedding = catalog.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.tensor_type, TensorType::F32);
    assert_eq!(
        embedding.row_bytes() * embedding.rows(),
        embedding.extent.bytes
    );
    assert!(catalog.tensor("no.such.tensor").is_none());
    for tensor in catalog.tensors() {
        assert_eq!(catalog.tensor(&tensor.name), Some(tensor));
    }
    assert_eq!(catalog.file_bytes(), fs::metadata(&path).unwrap().len());
    let last = catalog.tensors().iter().map(|it| it.extent);
    let end = last.map(|it| it.offset + it.bytes).max().unwrap();
    assert!(catalog.file_bytes() - end < 32, "the data reach to the end");
}

#[test]
fn every_fixture_opens() {
    for entry in fs::read_dir(fixture("")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "gguf") {
            Catalog::open(&path).unwrap();
        }
    }
}

#[test]
fn version_2_reads_like_version_3() {
    let catalog = open_bytes(&small_model().version(2).to_bytes()).unwrap();
    assert_eq!(catalog.tensors().len(), 2);
}

#[test]
fn every_metadata_type_comes_back_as_written() {
    let nested = Field::Array {
        element: 9,
        count: 2,
        bytes: [5_u32, 1, 0, 7, 8, 0, 0]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect(),
    };
    let bytes = GgufWriter::new("llama")
        .field("u8", Field::U8(200))
        .field("i8", Field::I8(-3))
        .field("u16", Field::U16(60_000))
        .field("i16", Field::I16(-300))
        .field("u32", Field::U32(4_000_000_000))
        .field("i32", Field::I32(-70_000))
        .field("u64", Field::U64(u64::MAX))
        .field("i64", Field::I64(i64::MIN))
        .field("f32", Field::F32(1.5))
        .field("f64", Field::F64(-2.25))
        .field("bool", Field::Bool(true))
        .field("bytes", Field::string(b"\xff\xfe"))
        .field("strings", Field::strings(["a", "", "ccc"]))
        .field("i32s", Field::i32s(&[1, -1]))
        .field("i64s", Field::i64s(&[1, 1 << 40, -5]))
        .field("small i64s", Field::i64s(&[1, 2]))
        .field("f32s", Field::f32s(&[0.5]))
        .field("bools", Field::bools(&[true, false]))
        .field("nested", nested)
        .to_bytes();
    let catalog = open_bytes(&bytes).unwrap();
    let get = |key: &str| catalog.metadata().get(key).unwrap().clone();
    assert_eq!(get("u8"), Value::Unsigned(200));
    assert_eq!(get("i8"), Value::Signed(-3));
    assert_eq!(get("u16"), Value::Unsigned(60_000));
    assert_eq!(get("i16"), Value::Signed(-300));
    assert_eq!(get("u32"), Value::Unsigned(4_000_000_000));
    assert_eq!(get("i32"), Value::Signed(-70_000));
    assert_eq!(get("u64"), Value::Unsigned(u64::MAX));
    assert_eq!(get("i64"), Value::Signed(i64::MIN));
    assert_eq!(get("f32"), Value::Float(1.5));
    assert_eq!(get("f64"), Value::Float(-2.25));
    assert_eq!(get("bool"), Value::Bool(true));
    assert_eq!(get("bytes"), Value::String(b"\xff\xfe".to_vec()));
    let table = catalog.metadata().strings("strings").unwrap().unwrap();
    let strings: Vec<&[u8]> = table.iter().collect();
    assert_eq!(strings, [b"a".as_slice(), b"", b"ccc"]);
    assert_eq!(get("i32s"), Value::Array(Array::I32(vec![1, -1])));
    assert_eq!(get("i64s"), Value::Array(Array::I64(vec![1, 1 << 40, -5])));
    assert_eq!(get("small i64s"), Value::Array(Array::I32(vec![1, 2])));
    assert_eq!(get("f32s"), Value::Array(Array::F32(vec![0.5])));
    assert_eq!(get("bools"), Value::Array(Array::Bool(vec![true, false])));
    assert_eq!(get("nested"), Value::Array(Array::Nested(2)));
}

#[test]
fn a_vocabulary_larger_than_the_read_window_is_read_whole() {
    let words: Vec<String> = (0..100_000).map(|index| format!("word {index}")).collect();
    let bytes = small_model()
        .field("tokenizer.ggml.tokens", Field::strings(&words))
        .to_bytes();
    let mut catalog = open_bytes(&bytes).unwrap();
    let table = catalog.metadata().strings("tokenizer.ggml.tokens");
    let table = table.unwrap().unwrap();
    assert!(table.iter().eq(words.iter().map(|word| word.as_bytes())));
    assert!(
        catalog
            .metadata_mut()
            .remove("tokenizer.ggml.tokens")
            .is_some()
    );
    assert!(catalog.metadata().get("tokenizer.ggml.tokens").is_none());
}

#[test]
fn the_stated_alignment_places_the_data() {
    for alignment in [8, 64, 4096] {
        let bytes = GgufWriter::new("llama")
            .alignment(alignment)
            .f32_tensor("first", &[1], &[1.0])
            .f32_tensor("second", &[1], &[2.0])
            .to_bytes();
        let catalog = open_bytes(&bytes).unwrap();
        for (name, number) in [("first", 1.0_f32), ("second", 2.0)] {
            let extent = catalog.tensor(name).unwrap().extent;
            assert_eq!(extent.offset % u64::from(alignment), 0);
            let start = extent.offset as usize;
            assert_eq!(bytes[start..start + 4], number.to_le_bytes());
        }
    }
}

#[test]
fn tensors_may_lie_in_any_order() {
    let bytes = GgufWriter::new("llama")
        .f32_tensor("late", &[8], &[1.0; 8])
        .stating_offset(32)
        .f32_tensor("early", &[8], &[2.0; 8])
        .stating_offset(0)
        .to_bytes();
    let catalog = open_bytes(&bytes).unwrap();
    let offset = |name| catalog.tensor(name).unwrap().extent.offset;
    assert_eq!(offset("late"), offset("early") + 32);
}

#[test]
fn a_file_without_tensors_is_a_model_of_its_metadata() {
    let catalog = open_bytes(&GgufWriter::new("llama").to_bytes()).unwrap();
    assert!(catalog.tensors().is_empty());
}

#[test]
fn the_identity_of_a_file_is_that_of_the_path() {
    let path = fixture("llama.gguf");
    let catalog = Catalog::open(&path).unwrap();
    let expected = FileIdentity::of(&fs::metadata(&path).unwrap());
    assert_eq!(catalog.files()[0].identity, expected);
    assert_eq!(catalog.files()[0].path, path);
}

// Shards.

#[test]
fn shards_open_by_the_first() {
    for first_holds_tensors in [true, false] {
        let folder = folder();
        let paths = small_model()
            .alignment(64)
            .write_shards(folder.path(), "model", 3, first_holds_tensors)
            .unwrap();
        let catalog = Catalog::open(&paths[0]).unwrap();
        let opened: Vec<&PathBuf> = catalog.files().iter().map(|it| &it.path).collect();
        assert_eq!(opened, paths.iter().collect::<Vec<_>>());
        assert_eq!(catalog.tensors().len(), 2);
        for (name, number) in [("first", 1.0_f32), ("second", 2.0)] {
            let extent = catalog.tensor(name).unwrap().extent;
            let bytes = fs::read(&paths[extent.file]).unwrap();
            let start = extent.offset as usize;
            assert_eq!(bytes[start..start + 4], number.to_le_bytes());
        }
        let sizes = paths.iter().map(|it| fs::metadata(it).unwrap().len());
        assert_eq!(catalog.file_bytes(), sizes.sum::<u64>());
    }
}

#[test]
fn opening_a_later_shard_names_the_first() {
    let folder = folder();
    let paths = small_model()
        .write_shards(folder.path(), "model", 2, true)
        .unwrap();
    let error = Catalog::open(&paths[1]).unwrap_err();
    let message = one_line(error, "model-00002-of-00002.gguf");
    assert_says(&message, &["shard 2 of 2", "model-00001-of-00002.gguf"]);
}

#[test]
fn a_missing_shard_is_named_by_the_path_expected() {
    let folder = folder();
    let paths = small_model()
        .write_shards(folder.path(), "model", 3, true)
        .unwrap();
    fs::remove_file(&paths[1]).unwrap();
    let error = Catalog::open(&paths[0]).unwrap_err();
    let message = one_line(error, "model-00002-of-00003.gguf");
    assert_says(&message, &["shard 2 of 3 is missing"]);
}

#[test]
fn a_shard_of_another_place_is_refused() {
    let folder = folder();
    let paths = small_model()
        .write_shards(folder.path(), "model", 3, true)
        .unwrap();
    fs::copy(&paths[2], &paths[1]).unwrap();
    let error = Catalog::open(&paths[0]).unwrap_err();
    let message = one_line(error, "model-00002-of-00003.gguf");
    assert_says(&message, &["`split.no` is 2, expected 1"]);
}

#[test]
fn a_shard_of_another_model_is_refused() {
    let folder = folder();
    let paths = small_model()
        .write_shards(folder.path(), "model", 2, true)
        .unwrap();
    let other = small_model().f32_tensor("third", &[1], &[0.0]);
    let others = other.write_shards(folder.path(), "other", 2, true).unwrap();
    fs::copy(&others[1], &paths[1]).unwrap();
    let error = Catalog::open(&paths[0]).unwrap_err();
    let message = one_line(error, "model-00002-of-00002.gguf");
    assert_says(&message, &["`split.tensors.count` is 3, expected 2"]);
}

#[test]
fn a_shard_without_its_keys_is_refused() {
    let folder = folder();
    let paths = small_model()
        .write_shards(folder.path(), "model", 2, true)
        .unwrap();
    GgufWriter::new("llama").write(&paths[1]).unwrap();
    let error = Catalog::open(&paths[0]).unwrap_err();
    let message = one_line(error, "model-00002-of-00002.gguf");
    assert_says(&message, &["`split.no` is missing"]);
}

#[test]
fn a_renamed_shard_is_told_how_its_name_should_end() {
    let folder = folder();
    let paths = small_model()
        .write_shards(folder.path(), "model", 2, true)
        .unwrap();
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(&paths[0], &renamed).unwrap();
    let message = one_line(Catalog::open(&renamed).unwrap_err(), "renamed.gguf");
    assert_says(&message, &["-00001-of-00002.gguf"]);
}

#[test]
fn shards_with_fewer_tensors_than_stated_are_refused() {
    let folder = folder();
    let shards = |model: GgufWriter, index: u16| {
        model
            .field("split.no", Field::U16(index))
            .field("split.count", Field::U16(2))
            .field("split.tensors.count", Field::I32(5))
            .write(
                folder
                    .path()
                    .join(format!("m-0000{}-of-00002.gguf", index + 1)),
            )
            .unwrap();
    };
    shards(small_model(), 0);
    shards(GgufWriter::new("llama"), 1);
    let error = Catalog::open(folder.path().join("m-00001-of-00002.gguf")).unwrap_err();
    let message = one_line(error, "m-00001-of-00002.gguf");
    assert_says(&message, &["`split.tensors.count` is 5, expected 2"]);
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let folder = folder();
    let paths = small_model()
        .f32_tensor("first", &[8], &[1.0; 8])
        .write_shards(folder.path(), "model", 3, true)
        .unwrap();
    let error = Catalog::open(&paths[0]).unwrap_err();
    assert_says(&one_line(error, "model-"), &["\"first\" occurs twice"]);
}

// Paths that lead to no model.

#[test]
fn a_path_that_leads_nowhere_is_an_error() {
    let folder = folder();
    let error = Catalog::open(folder.path().join("none.gguf")).unwrap_err();
    assert_says(&one_line(error, "none.gguf"), &["cannot open"]);
}

#[test]
fn a_directory_is_refused() {
    let folder = folder();
    let error = Catalog::open(folder.path()).unwrap_err();
    assert_says(
        &error.to_string(),
        &["a directory, expected a regular file"],
    );
}

#[test]
fn an_empty_file_is_refused() {
    assert_says(&message(b""), &["the file is empty"]);
}

#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let folder = folder();
    let path = folder.path().join("pipe.gguf");
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let error = Catalog::open(&path).unwrap_err();
    assert_says(&one_line(error, "pipe.gguf"), &["a FIFO"]);
}

#[test]
fn a_device_is_refused() {
    let error = Catalog::open("/dev/zero").unwrap_err();
    assert_says(&one_line(error, "/dev/zero"), &["a device"]);
}

#[test]
fn a_file_without_permission_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("secret.gguf");
    small_model().write(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // Root reads everything, so there is nothing to refuse.
    if fs::File::open(&path).is_ok() {
        return;
    }
    let error = Catalog::open(&path).unwrap_err();
    assert_says(&one_line(error, "secret.gguf"), &["cannot open"]);
}

// Files that are something else.

#[test]
fn a_text_file_is_told_what_it_starts_with() {
    let folder = folder();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "Hello, world").unwrap();
    let message = one_line(Catalog::open(&path).unwrap_err(), "notes.txt");
    assert_says(&message, &["starts with \"Hell\", expected \"GGUF\""]);
}

#[test]
fn a_file_of_two_bytes_is_told_what_it_starts_with() {
    assert_says(&message(b"GG"), &["starts with \"GG\", expected \"GGUF\""]);
}

#[test]
fn a_big_endian_file_is_named_as_such() {
    let bytes = small_model().version(3_u32.swap_bytes()).to_bytes();
    assert_says(&message(&bytes), &["big-endian", "version 3"]);
}

#[test]
fn version_1_is_named_as_such() {
    let bytes = small_model().version(1).to_bytes();
    assert_says(&message(&bytes), &["version 1, expected 2 or 3"]);
}

#[test]
fn a_version_of_the_future_is_refused() {
    let bytes = small_model().version(4).to_bytes();
    assert_says(&message(&bytes), &["version 4, expected 2 or 3"]);
}

// Headers that lie.

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let bytes = small_model()
        .field("words", Field::strings(["one", "two"]))
        .to_bytes();
    for length in 5..bytes.len() {
        let message = message(&bytes[..length]);
        assert_says(&message, &["truncated, download it again"]);
    }
}

#[test]
fn a_cut_inside_a_value_names_the_key_and_the_end() {
    let bytes = small_model()
        .field("words", Field::strings(["one", "two"]))
        .to_bytes();
    let length = after(&bytes, b"one");
    let message = message(&bytes[..length]);
    let end = format!("the file ends at byte {length} inside ");
    assert_says(&message, &[&end, "truncated"]);
}

#[test]
fn a_count_of_pairs_beyond_the_file_is_refused() {
    for count in [1_000, u64::MAX] {
        let mut bytes = small_model().to_bytes();
        bytes[16..24].copy_from_slice(&count.to_le_bytes());
        assert_says(&message(&bytes), &["inside the metadata"]);
    }
}

#[test]
fn a_count_of_tensors_beyond_the_file_is_refused() {
    for count in [1_000, u64::MAX] {
        let mut bytes = small_model().to_bytes();
        bytes[8..16].copy_from_slice(&count.to_le_bytes());
        assert_says(&message(&bytes), &["inside the tensor descriptions"]);
    }
}

#[test]
fn a_string_longer_than_the_file_is_refused() {
    for length in [10_000, u64::MAX] {
        let mut bytes = small_model().field("text", Field::string("abc")).to_bytes();
        let place = after(&bytes, b"text") + 4;
        bytes[place..place + 8].copy_from_slice(&length.to_le_bytes());
        assert_says(&message(&bytes), &["inside the value of \"text\""]);
    }
}

#[test]
fn an_array_longer_than_the_file_is_refused() {
    for element in 0..13 {
        for count in [100_000, u64::MAX] {
            let array = Field::Array {
                element,
                count,
                bytes: vec![0; 64],
            };
            let bytes = small_model().field("list", array).to_bytes();
            assert_says(&message(&bytes), &["inside the value of \"list\""]);
        }
    }
}

#[test]
fn an_array_nested_too_deep_is_refused() {
    let mut level = Vec::new();
    for _ in 0..100 {
        level.extend_from_slice(&9_u32.to_le_bytes());
        level.extend_from_slice(&1_u64.to_le_bytes());
    }
    let array = Field::Array {
        element: 9,
        count: 1,
        bytes: level,
    };
    let bytes = small_model().field("list", array).to_bytes();
    assert_says(&message(&bytes), &["nested deeper than 4"]);
}

#[test]
fn an_unknown_value_type_is_refused() {
    let mut bytes = small_model().field("text", Field::string("abc")).to_bytes();
    let place = after(&bytes, b"text");
    bytes[place..place + 4].copy_from_slice(&13_u32.to_le_bytes());
    let message = message(&bytes);
    assert_says(&message, &["\"text\"", "value type 13, expected 0 to 12"]);
}

#[test]
fn a_boolean_other_than_0_and_1_is_refused() {
    let mut bytes = small_model().field("flag", Field::Bool(true)).to_bytes();
    let place = after(&bytes, b"flag") + 4;
    bytes[place] = 2;
    assert_says(
        &message(&bytes),
        &["\"flag\"", "boolean 2, expected 0 or 1"],
    );
}

#[test]
fn a_number_past_63_bits_in_an_array_is_refused() {
    let array = Field::Array {
        element: 10,
        count: 1,
        bytes: u64::MAX.to_le_bytes().to_vec(),
    };
    let bytes = small_model().field("list", array).to_bytes();
    assert_says(&message(&bytes), &["\"list\"", "18446744073709551615"]);
}

#[test]
fn a_key_that_occurs_twice_is_refused() {
    let bytes = small_model()
        .field("same", Field::U32(1))
        .field("same", Field::U32(2))
        .to_bytes();
    assert_says(&message(&bytes), &["key \"same\" occurs twice"]);
}

#[test]
fn a_key_without_letters_is_refused() {
    let bytes = small_model().field("", Field::U32(1)).to_bytes();
    assert_says(&message(&bytes), &["a name of 0 bytes"]);
}

#[test]
fn a_key_longer_than_the_format_allows_is_refused() {
    let bytes = small_model()
        .field(&"k".repeat(65_536), Field::U32(1))
        .to_bytes();
    assert_says(&message(&bytes), &["a name of 65536 bytes"]);
}

#[test]
fn a_key_that_is_not_utf_8_is_refused() {
    let mut bytes = small_model().field("text", Field::U32(1)).to_bytes();
    let place = after(&bytes, b"text") - 1;
    bytes[place] = 0xff;
    assert_says(&message(&bytes), &["not UTF-8"]);
}

#[test]
fn a_key_with_line_breaks_still_makes_a_message_of_one_line() {
    let bytes = small_model()
        .field("two\nlines", Field::U32(1))
        .field("two\nlines", Field::U32(1))
        .to_bytes();
    assert_says(&message(&bytes), &[r#""two\nlines""#]);
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    for alignment in [0, 4, 33, 1 << 21, u32::MAX] {
        let bytes = GgufWriter::new("llama")
            .field("general.alignment", Field::U32(alignment))
            .to_bytes();
        let found = format!("`general.alignment` is {alignment}, expected a power of two");
        assert_says(&message(&bytes), &[&found]);
    }
}

#[test]
fn an_alignment_that_is_no_number_is_refused() {
    let bytes = GgufWriter::new("llama")
        .field("general.alignment", Field::string("wide"))
        .to_bytes();
    assert_says(&message(&bytes), &["`general.alignment` holds the string"]);
}

// Tensors that cannot be.

#[test]
fn a_tensor_that_occurs_twice_is_refused() {
    let bytes = small_model()
        .f32_tensor("first", &[8], &[1.0; 8])
        .to_bytes();
    assert_says(&message(&bytes), &["\"first\" occurs twice"]);
}

#[test]
fn a_tensor_of_unknown_type_is_refused() {
    for type_id in [4, 31, 99, u32::MAX] {
        let bytes = small_model()
            .tensor_of_type_id("odd", type_id, &[32], vec![0; 128])
            .to_bytes();
        let found = format!("tensor \"odd\" has type {type_id}");
        assert_says(&message(&bytes), &[&found]);
    }
}

#[test]
fn a_tensor_of_no_or_five_dimensions_is_refused() {
    for dims in [[].as_slice(), &[1, 1, 1, 1, 1]] {
        let bytes = small_model()
            .tensor("odd", TensorType::F32, dims, vec![0; 32])
            .to_bytes();
        let found = format!("{} dimensions, expected 1 to 4", dims.len());
        assert_says(&message(&bytes), &["\"odd\"", &found]);
    }
}

#[test]
fn a_tensor_with_a_dimension_of_zero_is_refused() {
    let bytes = small_model()
        .tensor("odd", TensorType::F32, &[8, 0], Vec::new())
        .to_bytes();
    assert_says(&message(&bytes), &["\"odd\"", "[8, 0]"]);
}

#[test]
fn a_row_that_is_no_whole_number_of_blocks_is_refused() {
    let bytes = small_model()
        .tensor("odd", TensorType::Q4_K, &[128], vec![0; 144])
        .to_bytes();
    let message = message(&bytes);
    assert_says(
        &message,
        &["rows of 128 elements", "256 in a block of Q4_K"],
    );
}

#[test]
fn dimensions_whose_product_overflows_are_refused() {
    for dims in [[1 << 62, 2].as_slice(), &[u64::MAX, u64::MAX, 1, 1]] {
        let bytes = small_model()
            .tensor("odd", TensorType::F32, dims, vec![0; 32])
            .to_bytes();
        assert_says(
            &message(&bytes),
            &["\"odd\"", "expected under 2^63 elements"],
        );
    }
}

#[test]
fn a_tensor_past_the_end_says_what_it_wanted_and_found() {
    let mut bytes = small_model().to_bytes();
    bytes.truncate(bytes.len() - 10);
    let message = message(&bytes);
    assert_says(&message, &["\"second\" needs 64 bytes", "found 54"]);
}

#[test]
fn a_tensor_with_an_extreme_offset_is_refused() {
    for offset in [1 << 40, u64::MAX - 31] {
        let bytes = small_model().stating_offset(offset).to_bytes();
        assert_says(&message(&bytes), &["\"second\" needs 64 bytes", "found 0"]);
    }
}

#[test]
fn a_tensor_off_the_alignment_is_refused() {
    let bytes = small_model().stating_offset(33).to_bytes();
    let message = message(&bytes);
    assert_says(&message, &["data offset 33, expected a multiple of 32"]);
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let bytes = GgufWriter::new("llama")
        .f32_tensor("wide", &[16], &[1.0; 16])
        .f32_tensor("inside", &[8], &[1.0; 8])
        .stating_offset(32)
        .to_bytes();
    assert_says(&message(&bytes), &["\"wide\" and \"inside\" overlap"]);
}

#[test]
fn arrays_are_dropped_and_the_rest_of_the_metadata_stays() {
    let bytes = small_model()
        .field("words", Field::strings(["one", "two"]))
        .field("types", Field::i32s(&[1, 2]))
        .field("text", Field::string("kept"))
        .to_bytes();
    let mut catalog = open_bytes(&bytes).unwrap();
    let count = catalog.metadata().iter().count();
    catalog.metadata_mut().drop_arrays();
    let metadata = catalog.metadata();
    assert_eq!(metadata.iter().count(), count - 2);
    assert_eq!(metadata.str("text").unwrap(), Some("kept"));
    assert_eq!(metadata.get("words"), None);
}
