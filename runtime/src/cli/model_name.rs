//! Names of models that are no paths: of Hugging Face and ollama, and where their files come
//! from.

use std::io;
use std::path::Path;

use emel_loader::gguf::GgufError;

use crate::error::Error;

/// Where a file of the quantisation is likely to be found if none is named.
const QUANTISATION: &str = "Q4_K_M";

/// The command that downloads a model named as `ORG/NAME`, `hf.co/ORG/NAME:QUANTISATION` and the
/// like; None if it is not such a name.
pub(super) fn download(name: &str) -> Option<String> {
    let name = ["https://", "http://"]
        .iter()
        .find_map(|scheme| name.strip_prefix(scheme))
        .unwrap_or(name);
    let name = ["hf.co/", "huggingface.co/"]
        .iter()
        .find_map(|host| name.strip_prefix(host))
        .unwrap_or(name);
    let (repository, quantisation) = name.split_once(':').unwrap_or((name, QUANTISATION));
    let (organisation, model) = repository.split_once('/')?;
    // A quantisation's file is named after it.
    [organisation, model, quantisation].iter().all(|it| is_name(it)).then(|| {
        format!(
            "emel downloads nothing; this does: hf download {repository} --include \"*{quantisation}*\" --local-dir . (then give the file's path)"
        )
    })
}

/// What helps against an error that says there is no such model file.
pub(super) fn advice_against(error: &anyhow::Error) -> Option<String> {
    let gguf = match error.downcast_ref::<Error>() {
        Some(Error::Gguf(error)) => error,
        _ => error.downcast_ref::<GgufError>()?,
    };
    match gguf {
        GgufError::Open { path, source } if source.kind() == io::ErrorKind::NotFound => {
            advice(path)
        }
        _ => None,
    }
}

/// What helps with a model of which there is no file, by what its name looks like.
pub(super) fn advice(path: &Path) -> Option<String> {
    let name = path.to_str()?;
    if name.ends_with(".gguf") || name.starts_with(['.', '/', '~']) {
        return None;
    }
    download(name).or_else(|| {
        let (model, tag) = name.split_once(':')?;
        (is_name(model) && is_name(tag)).then(|| {
            format!(
                "{name} is a name of ollama's: `ollama show --modelfile {name}` says after FROM which file it is, in ~/.ollama/models/blobs or /usr/share/ollama/.ollama/models/blobs; give that path"
            )
        })
    })
}

fn is_name(text: &str) -> bool {
    let is_of_name = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(is_of_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hugging_face_give_the_command_that_downloads_them() {
        for (name, command) in [
            (
                "unsloth/Qwen3-30B-A3B-GGUF",
                "hf download unsloth/Qwen3-30B-A3B-GGUF --include \"*Q4_K_M*\" --local-dir .",
            ),
            (
                "hf.co/bartowski/Mistral-Small-GGUF:Q5_K_S",
                "hf download bartowski/Mistral-Small-GGUF --include \"*Q5_K_S*\" --local-dir .",
            ),
            (
                "https://huggingface.co/ggml-org/gpt-oss-20b-GGUF",
                "hf download ggml-org/gpt-oss-20b-GGUF --include \"*Q4_K_M*\" --local-dir .",
            ),
        ] {
            let advice = advice(Path::new(name)).unwrap();
            assert!(advice.contains(command), "{advice}");
        }
    }

    #[test]
    fn names_of_ollama_say_where_its_files_are() {
        let advice = advice(Path::new("llama3.2:3b")).unwrap();
        assert!(advice.contains("ollama show --modelfile llama3.2:3b"));
        assert!(advice.contains("~/.ollama/models/blobs"), "{advice}");
    }

    #[test]
    fn paths_are_no_names() {
        for path in [
            "model.gguf",
            "models/model.gguf",
            "./org/name",
            "/org/name",
            "a/b/c",
            "../name",
            "model",
            "",
            "a b/c",
        ] {
            assert_eq!(advice(Path::new(path)), None, "{path}");
        }
    }
}
