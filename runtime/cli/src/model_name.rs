//! Names of models that are no paths: of Hugging Face and ollama, and where their files come
//! from.

use std::io;
use std::path::Path;

use emel_loader::gguf::GgufError;

use emel::Error;

/// Where a file of the quantisation is likely to be found if none is named.
const QUANTISATION: &str = "Q4_K_M";

/// The command that downloads a model named as `ORG/NAME`, `hf.co/ORG/NAME:QUANTISATION` and the
/// like, or by the address of its file; None if it is not such a name.
pub(super) fn download(name: &str) -> Option<String> {
    let schemes = ["https://", "http://"];
    let address = schemes.iter().find_map(|scheme| name.strip_prefix(scheme));
    let hosts = ["hf.co/", "huggingface.co/"];
    let plain = address.unwrap_or(name);
    let of_host = hosts.iter().find_map(|host| plain.strip_prefix(host));
    let is_address = address.is_some() || of_host.is_some();
    let path = of_host.unwrap_or(plain);
    let (repository, quantisation) = path.split_once(':').unwrap_or((path, QUANTISATION));
    let is_repository = repository
        .split_once('/')
        .is_some_and(|(organisation, model)| {
            let mut names = [organisation, model, quantisation].into_iter();
            names.all(is_name) && !model.ends_with(".gguf")
        });
    // A quantisation's file is named after it.
    let command = match is_repository {
        true if address.is_none() || of_host.is_some() => {
            format!("hf download {repository} --include \"*{quantisation}*\" --local-dir .")
        }
        // Hugging Face's page of a file is at `blob`, the file itself at `resolve`.
        _ if is_address && path.ends_with(".gguf") => {
            format!(
                "curl -LO https://{}",
                plain.replacen("/blob/", "/resolve/", 1)
            )
        }
        _ => return None,
    };
    Some(format!(
        "emel downloads nothing; this does: {command} (then give the file's path)"
    ))
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
    if name.starts_with(['.', '/', '~']) {
        return None;
    }
    download(name).or_else(|| {
        let (model, tag) = name.split_once(':').unwrap_or((name, "latest"));
        (is_name(model) && is_name(tag) && !name.ends_with(".gguf")).then(|| {
            format!(
                "emel keeps no models: give the path of a GGUF file (if ollama has the model, `ollama show --modelfile {name}` says after FROM which file it is, in ~/.ollama/models/blobs or /usr/share/ollama/.ollama/models/blobs)"
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
        for name in ["llama3.2:3b", "smollm2"] {
            let advice = advice(Path::new(name)).unwrap();
            assert!(advice.contains("give the path of a GGUF file"));
            assert!(advice.contains(&format!("ollama show --modelfile {name}`")));
            assert!(advice.contains("~/.ollama/models/blobs"), "{advice}");
        }
    }

    #[test]
    fn addresses_give_the_command_that_fetches_the_file() {
        for (address, fetched) in [
            (
                "https://huggingface.co/a/b-GGUF/blob/main/b-Q4_K_M.gguf",
                "curl -LO https://huggingface.co/a/b-GGUF/resolve/main/b-Q4_K_M.gguf (then",
            ),
            (
                "http://example.com/x.gguf",
                "curl -LO https://example.com/x.gguf (then",
            ),
            (
                "hf.co/a/b/resolve/main/x.gguf",
                "curl -LO https://hf.co/a/b/resolve/main/x.gguf (then",
            ),
        ] {
            let advice = advice(Path::new(address)).unwrap();
            assert!(advice.contains(fetched), "{advice}");
        }
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
            "",
            "a b/c",
        ] {
            assert_eq!(advice(Path::new(path)), None, "{path}");
        }
    }
}
