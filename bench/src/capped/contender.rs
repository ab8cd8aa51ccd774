//! The contenders: programs that answer the same prompt, and what they say while they do.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A contender that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// emel, streaming
    Emel,
    /// emel, through an advised mapping
    EmelMmap,
    /// llama.cpp, through its mapping
    Llama,
}

/// A contender in one of its settings; of two of a contender the better one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// emel, streaming.
    Emel,
    /// emel, mapping.
    EmelMmap,
    /// llama.cpp, with weights as they are in the file.
    Llama,
    /// llama.cpp, with weights repacked, which copies them.
    LlamaRepacked,
}

impl Contender {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Emel => "emel",
            Self::EmelMmap => "emel, mapped",
            Self::Llama => "llama.cpp",
        }
    }
}

impl Variant {
    /// The contender that it is a setting of.
    pub fn contender(self) -> Contender {
        match self {
            Self::Emel => Contender::Emel,
            Self::EmelMmap => Contender::EmelMmap,
            Self::Llama | Self::LlamaRepacked => Contender::Llama,
        }
    }

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaRepacked => "llama.cpp, repacked",
            _ => self.contender().name(),
        }
    }
}

/// What every contender is given, and where its program is.
#[derive(Debug, Clone)]
pub struct Task {
    /// The model's first file.
    pub model: PathBuf,
    /// Token ids of the prompt.
    pub ids: Vec<u32>,
    /// Tokens to answer with, the first included.
    pub tokens: usize,
    /// At which these are drawn; 0 takes the likeliest.
    pub temperature: f32,
    /// Threads that compute.
    pub threads: usize,
    /// `capped-run`.
    pub emel: PathBuf,
    /// A Python that has llama.cpp.
    pub llama_python: PathBuf,
    /// `bench/versus_llama`.
    pub llama_script: PathBuf,
}

impl Task {
    /// Tokens of the context.
    pub fn context(&self) -> usize {
        self.ids.len() + self.tokens + 1
    }

    /// The command of a contender; `budget_bytes` is what emel plans for, if not what the
    /// machine leaves.
    pub fn command(&self, variant: Variant, budget_bytes: Option<u64>) -> Vec<OsString> {
        match variant {
            Variant::Emel => self.emel_command("auto", budget_bytes),
            Variant::EmelMmap => self.emel_command("mmap", budget_bytes),
            Variant::Llama => self.llama_command(false),
            Variant::LlamaRepacked => self.llama_command(true),
        }
    }

    fn emel_command(&self, io: &str, budget_bytes: Option<u64>) -> Vec<OsString> {
        let ids: Vec<String> = self.ids.iter().map(u32::to_string).collect();
        let mut command: Vec<OsString> = vec![self.emel.clone().into(), self.model.clone().into()];
        command.extend(["--io", io, "--threads"].map(OsString::from));
        command.extend([self.threads.to_string(), "--tokens".into()].map(OsString::from));
        command.extend([self.tokens.to_string(), "--temp".into()].map(OsString::from));
        command.extend([self.temperature.to_string(), "--ids".into()].map(OsString::from));
        command.push(ids.join(",").into());
        if let Some(bytes) = budget_bytes {
            command.extend(["--ram-budget".into(), bytes.to_string()].map(OsString::from));
        }
        command
    }

    fn llama_command(&self, repack: bool) -> Vec<OsString> {
        let task = json!({
            "model": self.model.to_string_lossy(),
            "threads": self.threads,
            "ids": self.ids,
            "answer": true,
            "decode_tokens": self.tokens,
            "temp": self.temperature,
            "mmap": true,
            "repack": repack,
        });
        self.llama(&task)
    }

    /// The command that prints what the llama.cpp here can do.
    pub fn describe_llama(&self) -> Vec<OsString> {
        self.llama(&json!({ "model": self.model.to_string_lossy(), "describe": true }))
    }

    fn llama(&self, task: &Value) -> Vec<OsString> {
        vec![
            self.llama_python.clone().into(),
            self.llama_script.clone().into(),
            "--measure-llama".into(),
            task.to_string().into(),
        ]
    }
}

/// A line that a contender prints when it gets somewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Where it got.
    pub event: Event,
    /// Bytes that drives have read for the process so far.
    pub bytes_read: Option<u64>,
    /// Its page faults so far that had to wait for a drive.
    pub major_faults: Option<u64>,
    /// With the last mark, what has been measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// Where a contender gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It can take the prompt.
    Loaded,
    /// The prompt is read and the first token known.
    FirstToken,
    /// All tokens are.
    Done,
}

/// How long an answer took, and with what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Until the prompt could be taken.
    pub load_seconds: f64,
    /// From the prompt to the first token.
    pub first_token_seconds: f64,
    /// For each token after it.
    pub token_seconds: Vec<f64>,
    /// What emel planned for.
    #[serde(default)]
    pub budget_bytes: Option<u64>,
    /// What the engine says of itself.
    #[serde(default)]
    pub usage: Value,
}
