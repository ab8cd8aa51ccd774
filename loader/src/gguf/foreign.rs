//! Files that are given as models and are something else, by their first bytes.

use std::path::Path;

/// Bytes from the start of a file that tell what it is.
pub(super) const HEAD_BYTES: usize = 512;

/// What a file is, and what to do instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Foreign {
    pub(super) found: &'static str,
    pub(super) advice: &'static str,
}

/// Formats that begin with fixed bytes.
const BY_START: &[(&[u8], Foreign)] = &[
    (
        b"version https://git-lfs",
        foreign(
            "a Git LFS pointer, which stands for the file",
            "fetch the file itself (git lfs pull)",
        ),
    ),
    (
        b"PK\x03\x04",
        foreign("a ZIP archive, as PyTorch's checkpoints are", CONVERT),
    ),
    (b"\x80\x02", PICKLE),
    (b"\x80\x03", PICKLE),
    (b"\x80\x04", PICKLE),
    (b"lmgg", OLD_GGML),
    (b"fmgg", OLD_GGML),
    (b"tjgg", OLD_GGML),
    (
        b"algg",
        foreign("a LoRA adapter of ggml's old format", MERGE),
    ),
    (
        b"nsgg",
        foreign("a session of llama.cpp", "pass the model itself"),
    ),
    (b"\x1f\x8b", COMPRESSED),
    (b"\x28\xb5\x2f\xfd", COMPRESSED),
    (b"\xfd7zXZ\0", COMPRESSED),
    (b"BZh", COMPRESSED),
    (b"Entry not found", NOT_FOUND),
    (b"Repository not found", NOT_FOUND),
    (b"Invalid username or password", NOT_FOUND),
    (b"Access to model", NOT_FOUND),
];

const CONVERT: &str =
    "convert the model to GGUF (llama.cpp's convert_hf_to_gguf.py), or download its GGUF file";
const MERGE: &str = "merge it into its base model (llama-export-lora) and run that";
const PICKLE: Foreign = foreign("a Python pickle, as old PyTorch checkpoints are", CONVERT);
const OLD_GGML: Foreign = foreign(
    "a model of ggml's old format, from before GGUF",
    "download the model as GGUF, or convert it (llama.cpp's convert_llama_ggml_to_gguf.py)",
);
const COMPRESSED: Foreign = foreign("a compressed file", "unpack it");
const NOT_FOUND: Foreign = foreign(
    "the message of a download that failed",
    "check the address and your access, and download it again",
);

const fn foreign(found: &'static str, advice: &'static str) -> Foreign {
    Foreign { found, advice }
}

/// What a file with these first bytes is, if it is known and no GGUF file.
pub(super) fn recognise(head: &[u8], file_bytes: u64) -> Option<Foreign> {
    let by_start = BY_START.iter().find(|(start, _)| head.starts_with(start));
    if let Some((_, known)) = by_start {
        return Some(*known);
    }
    let text = head.trim_ascii_start();
    let begins = |start: &str| {
        let found = text.get(..start.len());
        found.is_some_and(|found| found.eq_ignore_ascii_case(start.as_bytes()))
    };
    if begins("<!doctype html") || begins("<html") || begins("<?xml") {
        return Some(foreign(
            "a web page",
            "download the file itself, not the page that describes it",
        ));
    }
    if is_safetensors(head, file_bytes) {
        return Some(foreign("a safetensors file", CONVERT));
    }
    if begins("{") {
        return Some(foreign("a JSON text", "pass the path of a .gguf model"));
    }
    if is_importance_matrix(head) {
        return Some(foreign(
            "an importance matrix (imatrix)",
            "pass the model that it was made for",
        ));
    }
    let is_blank = head.len() == HEAD_BYTES && head.iter().all(|&byte| byte == 0);
    is_blank.then_some(foreign(
        "zeros at its start",
        "its download has not ended; download it again",
    ))
}

/// The length of a JSON header, and the header.
/// <https://huggingface.co/docs/safetensors/index>
fn is_safetensors(head: &[u8], file_bytes: u64) -> bool {
    let Some((length, text)) = head.split_first_chunk() else {
        return false;
    };
    let length = u64::from_le_bytes(*length);
    text.first() == Some(&b'{') && length < file_bytes
}

/// The number of entries, and the first one's name: the matrix that it belongs to.
fn is_importance_matrix(head: &[u8]) -> bool {
    let name = || {
        let (_, rest) = head.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk()?;
        rest.get(..u32::from_le_bytes(*length) as usize)
    };
    name().is_some_and(|name| name.is_ascii() && name.ends_with(b".weight"))
}

/// What of a folder could be passed instead of it: its models, in words.
pub(super) fn models_in(folder: &Path) -> String {
    const SHOWN: usize = 5;
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_model(name)).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    match (names.is_empty(), more) {
        (true, _) => "it holds no .gguf file; pass the path of one".to_owned(),
        (false, 0) => format!("pass the path of a model in it: {}", names.join(", ")),
        (false, more) => format!(
            "pass the path of a model in it: {} and {more} more",
            names.join(", ")
        ),
    }
}

/// Later shards are none.
fn is_model(name: &str) -> bool {
    name.ends_with(".gguf") && (!name.contains("-of-") || name.contains("-00001-of-"))
}
