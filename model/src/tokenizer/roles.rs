//! Which tokens begin a text, end it, and end a generation.
//!
//! Files name some of these by id. Many leave out the ones that end a turn, so
//! those are also known by their texts, as llama.cpp knows them.

use emel_loader::gguf::{Metadata, Value};

use super::error::{TokenizerError, TokenizerWarning};
use super::vocabulary::{TokenKind, Vocabulary};

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const END_OF_TURN: &str = "tokenizer.ggml.eot_token_id";
const END_OF_MESSAGE: &str = "tokenizer.ggml.eom_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// The key's spelling in files, and the right one.
const SEPARATOR: [&str; 2] = [
    "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.separator_token_id",
];
const CLASS: &str = "tokenizer.ggml.cls_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Texts of tokens that end a generation, however the file labels them.
const ENDING_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// A job in fill-in-the-middle: the keys that name its token, the texts it is known
/// by otherwise, and whether that token ends a generation.
struct FillRole {
    keys: &'static [&'static str],
    texts: &'static [&'static str],
    ends_generation: bool,
}

const FILL_ROLES: &[FillRole] = &[
    FillRole {
        keys: &[
            "tokenizer.ggml.fim_pre_token_id",
            "tokenizer.ggml.prefix_token_id",
        ],
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends_generation: false,
    },
    FillRole {
        keys: &[
            "tokenizer.ggml.fim_suf_token_id",
            "tokenizer.ggml.suffix_token_id",
        ],
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends_generation: false,
    },
    FillRole {
        keys: &[
            "tokenizer.ggml.fim_mid_token_id",
            "tokenizer.ggml.middle_token_id",
        ],
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends_generation: false,
    },
    FillRole {
        keys: &["tokenizer.ggml.fim_pad_token_id"],
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends_generation: true,
    },
    FillRole {
        keys: &["tokenizer.ggml.fim_rep_token_id"],
        texts: &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
        ends_generation: true,
    },
    FillRole {
        keys: &["tokenizer.ggml.fim_sep_token_id"],
        texts: &["<|file_sep|>"],
        ends_generation: true,
    },
];

/// What to assume where a file does not say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoleDefaults {
    /// Beginning of text.
    pub(super) bos: Option<u32>,
    /// End of text.
    pub(super) eos: Option<u32>,
    /// What the vocabulary cannot express.
    pub(super) unknown: Option<u32>,
    /// The end of a text that is classified rather than continued; it is added to
    /// every one.
    pub(super) separator: Option<u32>,
    /// Whether texts begin with the BOS token.
    pub(super) adds_bos: bool,
    /// Whether texts end with the EOS token.
    pub(super) adds_eos: bool,
}

/// The tokens with a job.
#[derive(Debug, Clone)]
pub(super) struct Roles {
    /// Beginning of text.
    pub(super) bos: Option<u32>,
    /// End of text.
    pub(super) eos: Option<u32>,
    /// What the vocabulary cannot express.
    pub(super) unknown: Option<u32>,
    /// Ends every text, in families that have such a token.
    pub(super) separator: Option<u32>,
    /// Whether texts begin with the BOS token.
    pub(super) adds_bos: bool,
    /// Whether texts end with the EOS token.
    pub(super) adds_eos: bool,
    /// What ends a generation, in order.
    pub(super) ending: Vec<u32>,
}

impl Roles {
    /// Reads the roles, and corrects the kinds of tokens that are control tokens by
    /// their text but not by their label.
    pub(super) fn new(
        metadata: &Metadata,
        vocabulary: &mut Vocabulary,
        defaults: RoleDefaults,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        let mut named = |key, default: Option<u32>| {
            let valid = default.filter(|&id| (id as usize) < vocabulary.len());
            Ok::<_, TokenizerError>(token_id(metadata, key, vocabulary, warnings)?.or(valid))
        };
        let mut separator = None;
        if defaults.separator.is_some() {
            separator = named(SEPARATOR[0], None)?;
            let right_name = named(SEPARATOR[1], defaults.separator)?;
            separator = separator.or(right_name);
        }
        let class = named(CLASS, defaults.bos)?;
        let bos = named(BOS, class)?;
        let eos = named(EOS, defaults.eos)?;
        let unknown = named(UNKNOWN, defaults.unknown)?;
        let by_id = [eos, named(END_OF_TURN, None)?, named(END_OF_MESSAGE, None)?];
        let adds_bos = adds(metadata, ADD_BOS, BOS, bos, defaults.adds_bos)?;
        let adds_eos = adds(metadata, ADD_EOS, EOS, eos, defaults.adds_eos)?;
        let mut ending = find_ending(metadata, vocabulary, warnings)?;
        ending.extend(by_id.into_iter().flatten());
        relabel_channels(vocabulary, &mut ending);
        ending.sort_unstable();
        ending.dedup();
        ending.shrink_to_fit();
        Ok(Self {
            bos,
            eos,
            unknown,
            separator,
            adds_bos,
            adds_eos,
            ending,
        })
    }

    /// Whether a generation ends with this token.
    pub(super) fn ends_generation(&self, id: u32) -> bool {
        self.ending.binary_search(&id).is_ok()
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.ending.capacity() * size_of::<u32>()
    }
}

/// Whether to add a token to every text. An explicit wish for a token that the file
/// does not name is an error; a mere default gives way.
fn adds(
    metadata: &Metadata,
    flag: &'static str,
    key: &'static str,
    token: Option<u32>,
    default: bool,
) -> Result<bool, TokenizerError> {
    match metadata.bool(flag)? {
        Some(true) if token.is_none() => Err(TokenizerError::UnnamedToken { flag, key }),
        Some(explicit) => Ok(explicit),
        None => Ok(default && token.is_some()),
    }
}

/// The token that a key names. An id that no token has is left out, with a warning.
fn token_id(
    metadata: &Metadata,
    key: &'static str,
    vocabulary: &Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<Option<u32>, TokenizerError> {
    let vocabulary_size = vocabulary.len();
    let found = match metadata.get(key) {
        Some(&Value::Signed(number)) if number < 0 => number,
        _ => match metadata.u32(key)? {
            Some(id) if (id as usize) < vocabulary_size => return Ok(Some(id)),
            Some(id) => i64::from(id),
            None => return Ok(None),
        },
    };
    warnings.push(TokenizerWarning::TokenId {
        key,
        found,
        vocabulary_size,
    });
    Ok(None)
}

fn find_ending(
    metadata: &Metadata,
    vocabulary: &mut Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<Vec<u32>, TokenizerError> {
    let mut ending = Vec::new();
    for role in FILL_ROLES {
        let mut token = None;
        for key in role.keys {
            token = token.or(token_id(metadata, key, vocabulary, warnings)?);
        }
        if token.is_none() {
            let mut texts = role.texts.iter();
            token = texts.find_map(|text| vocabulary.id(text.as_bytes()));
            if let Some(id) = token {
                vocabulary.set_kind(id, TokenKind::Control);
            }
        }
        ending.extend(token.filter(|_| role.ends_generation));
    }
    // `</s>` is the end of a text in some vocabularies and a tag of HTML in others,
    // where it is not labelled as control.
    let end = vocabulary.id(b"</s>");
    ending.extend(end.filter(|&id| vocabulary.kind(id) == TokenKind::Control));
    for text in ENDING_TEXTS {
        if let Some(id) = vocabulary.id(text.as_bytes()) {
            vocabulary.set_kind(id, TokenKind::Control);
            ending.push(id);
        }
    }
    Ok(ending)
}

/// Models that write in channels (gpt-oss, Solar) end a message, not the
/// generation, with `<|end|>`, and their channel marks are part of the text. Models
/// with tool responses use `</s>` as text.
fn relabel_channels(vocabulary: &mut Vocabulary, ending: &mut Vec<u32>) {
    for text in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
        if let Some(id) = vocabulary.id(text.as_bytes()) {
            vocabulary.set_kind(id, TokenKind::UserDefined);
        }
    }
    let ends = |text: &str| {
        let id = vocabulary.id(text.as_bytes());
        id.filter(|id| ending.contains(id))
    };
    let calls = ends("<|call|>").or(ends("<|calls|>")).is_some();
    let channels = calls && (ends("<|return|>").or(ends("<|flush|>"))).is_some();
    let message_end = ends("<|end|>").filter(|_| channels);
    let plain_end = ends("</s>").filter(|_| ends("<|tool_response>").is_some());
    if let Some(id) = message_end {
        vocabulary.set_kind(id, TokenKind::UserDefined);
        ending.retain(|&other| other != id);
    }
    if let Some(id) = plain_end {
        vocabulary.set_kind(id, TokenKind::Normal);
        ending.retain(|&other| other != id);
    }
}
