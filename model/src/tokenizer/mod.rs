//! Text to tokens and back, from the vocabulary in a GGUF file.
//!
//! A file names its family: byte-level byte-pair encoding (`gpt2`), SentencePiece's
//! byte-pair encoding (`llama`, and `gemma4` with merge rules) and Unigram (`t5`),
//! WordPiece (`bert`), or the longest match (`rwkv`). The ids are those of llama.cpp,
//! which is what the models' files are made for and checked with.
//!
//! A text goes through three steps: special tokens are cut out, the rest is cut into
//! words, and each word becomes tokens. All of it takes time in proportion to the text,
//! but for a logarithm of the longest word.

mod byte_alphabet;
mod byte_pair;
mod charsmap;
mod detokenizer;
mod error;
mod merge_table;
mod pre_tokenizer;
mod prefix_index;
mod roles;
mod rwkv;
mod sentence_piece;
mod special;
mod symbol_chain;
mod unigram;
mod vocabulary;
mod word_piece;

use emel_loader::gguf::{Metadata, MetadataError, StringTable};

use byte_pair::BytePair;
pub use detokenizer::Detokenizer;
pub use error::{TokenizerError, TokenizerWarning};
use merge_table::MergeTable;
use pre_tokenizer::character_boundary;
use roles::{RoleDefaults, Roles};
use rwkv::Rwkv;
use sentence_piece::{ESCAPED_SPACE, Order, SentencePiece};
use special::{Fragment, SpecialTokens};
use unigram::Unigram;
use vocabulary::{TokenKind, Vocabulary};
use word_piece::WordPiece;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// Positions within a stretch of text are counted in 32 bits, and escaping can make
/// a text three times as long.
const STRETCH_BYTES_MAX: usize = 1 << 30;

/// How a text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the BOS and EOS tokens that the model's file asks for.
    pub add_special: bool,
    /// Take the texts of control tokens, such as `<|im_end|>`, for these tokens.
    /// For text from a user this must be off, lest the user speaks for others.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// How the text of a prompt is read: BOS as the file says, special tokens recognised.
    pub const PROMPT: Self = Self {
        add_special: true,
        parse_special: true,
    };
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self {
            add_special: true,
            parse_special: false,
        }
    }
}

/// How tokens are turned into text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeOptions {
    /// Render control and unknown tokens by their text instead of as nothing.
    pub special: bool,
    /// The first token begins a text, rather than going on with one: where the
    /// model puts a space before every text, that space is dropped.
    pub from_start: bool,
}

/// The vocabulary of a model and the way it is used.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    special: SpecialTokens,
    roles: Roles,
    family: Family,
    warnings: Vec<TokenizerWarning>,
}

#[derive(Debug)]
enum Family {
    BytePair(Box<BytePair>),
    SentencePiece(Box<SentencePiece>),
    WordPiece(Box<WordPiece>),
    Unigram(Box<Unigram>),
    Rwkv(Box<Rwkv>),
}

/// Names of families, as files spell them.
const FAMILIES: &str = "gpt2, llama, gemma4, bert, t5, rwkv";

impl Tokenizer {
    /// Builds the tokenizer of a model.
    ///
    /// The large arrays are taken out of `metadata` rather than copied, even when
    /// the result is an error.
    ///
    /// # Errors
    /// When the tokenizer's family is not supported or a key is missing, of the
    /// wrong type, or contradicts another one. The error names the key.
    pub fn from_metadata(metadata: &mut Metadata) -> Result<Self, TokenizerError> {
        let model = Metadata::required(metadata.str(MODEL)?, MODEL, "a string")?;
        let model = match (model, metadata.str(PRE)?) {
            // Rules over characters instead of bytes, under the other family's name.
            ("gpt2", Some("gemma4" | "granite-embed-multi-311m")) => "gemma4",
            _ => model,
        };
        let family: TakeFamily = match model {
            "gpt2" => byte_pair_family,
            "llama" => sentence_piece_family,
            "gemma4" => ranked_sentence_piece_family,
            "bert" => word_piece_family,
            "t5" => unigram_family,
            "rwkv" => rwkv_family,
            other => {
                return Err(TokenizerError::UnsupportedModel {
                    found: other.to_owned(),
                    supported: FAMILIES,
                });
            }
        };
        let with_scores = matches!(model, "llama" | "t5");
        let unescape: fn(StringTable) -> StringTable = match model {
            "rwkv" => rwkv::unescape,
            _ => |texts| texts,
        };
        let mut warnings = Vec::new();
        let mut vocabulary = Vocabulary::take(metadata, with_scores, unescape, &mut warnings)?;
        let (family, roles) = family(metadata, &mut vocabulary, &mut warnings)?;
        Ok(Self {
            special: SpecialTokens::new(&vocabulary, strips_space(metadata)?),
            vocabulary,
            roles,
            family,
            warnings,
        })
    }

    /// What is odd about the file, to be shown to the user.
    pub fn warnings(&self) -> &[TokenizerWarning] {
        &self.warnings
    }

    /// The number of tokens; ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
    }

    /// Whether [`EncodeOptions::add_special`] adds the BOS token.
    pub fn adds_bos(&self) -> bool {
        self.roles.adds_bos
    }

    /// Whether [`EncodeOptions::add_special`] adds the EOS token.
    pub fn adds_eos(&self) -> bool {
        self.roles.adds_eos
    }

    /// Whether a model that produces this token has finished its turn.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.roles.ends_generation(id)
    }

    /// The tokens that end a turn, in order.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.roles.ending
    }

    /// Whether the token steers the model and is no part of the text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == TokenKind::Control
    }

    /// The token with exactly this text in the vocabulary, as special tokens are
    /// written. Other tokens are stored in the escaped form of their family.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.id(text.as_bytes())
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        self.encode_bytes(text.as_bytes(), options)
    }

    /// The tokens of a text that need not be UTF-8. Bytes that are not become byte
    /// tokens where the family has them; else they are unknown (`t5`) or dropped
    /// (`bert`).
    pub fn encode_bytes(&self, text: &[u8], options: EncodeOptions) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special && self.roles.adds_bos {
            tokens.extend(self.roles.bos);
        }
        let mut after_special = true;
        for chunk in text.utf8_chunks() {
            self.encode_valid(chunk.valid(), options, &mut after_special, &mut tokens);
            if !chunk.invalid().is_empty() {
                self.encode_invalid(chunk.invalid(), &mut tokens);
                after_special = false;
            }
        }
        if options.add_special {
            tokens.extend(self.roles.eos.filter(|_| self.roles.adds_eos));
            tokens.extend(self.roles.separator);
        }
        tokens
    }

    fn encode_valid(
        &self,
        text: &str,
        options: EncodeOptions,
        after_special: &mut bool,
        tokens: &mut Vec<u32>,
    ) {
        let parse_special = options.parse_special;
        for fragment in self
            .special
            .partition(&self.vocabulary, text, parse_special)
        {
            match fragment {
                Fragment::Token(id) => {
                    tokens.push(id);
                    *after_special = true;
                }
                Fragment::Text(range) => {
                    self.encode_text(&text[range], *after_special, tokens);
                    *after_special = false;
                }
            }
        }
    }

    fn encode_invalid(&self, bytes: &[u8], tokens: &mut Vec<u32>) {
        match &self.family {
            Family::BytePair(encoder) => encoder.encode_bytes(bytes, tokens),
            Family::SentencePiece(encoder) => encoder.encode_bytes(bytes, tokens),
            Family::Rwkv(encoder) => encoder.encode(&self.vocabulary, bytes, tokens),
            Family::Unigram(_) => tokens.extend(self.roles.unknown),
            Family::WordPiece(_) => {}
        }
    }

    fn encode_text(&self, mut text: &str, mut after_special: bool, tokens: &mut Vec<u32>) {
        let vocabulary = &self.vocabulary;
        while !text.is_empty() {
            let limit = match &self.family {
                Family::Unigram(_) => unigram::STRETCH_BYTES_MAX,
                _ => STRETCH_BYTES_MAX,
            };
            let (stretch, rest) = text.split_at(character_boundary(text, limit));
            match &self.family {
                Family::BytePair(encoder) => encoder.encode(vocabulary, stretch, tokens),
                Family::SentencePiece(encoder) => {
                    encoder.encode(vocabulary, stretch, after_special, tokens);
                }
                Family::WordPiece(encoder) => encoder.encode(vocabulary, stretch, tokens),
                Family::Unigram(encoder) => encoder.encode(vocabulary, stretch, tokens),
                Family::Rwkv(encoder) => encoder.encode(vocabulary, stretch.as_bytes(), tokens),
            }
            after_special = false;
            text = rest;
        }
    }

    /// The text of a sequence of tokens, with U+FFFD for bytes that are not UTF-8. Of
    /// `bert`, the spaces that its words are cut at are cleaned up as in llama.cpp.
    pub fn decode(&self, tokens: &[u32], options: DecodeOptions) -> String {
        let mut detokenizer = Detokenizer::new(self, options);
        let mut text = String::with_capacity(tokens.len() * 4);
        for &token in tokens {
            text.push_str(detokenizer.push(self, token));
        }
        text.push_str(detokenizer.finish());
        match &self.family {
            Family::WordPiece(_) => word_piece::clean_up_spaces(&text),
            _ => text,
        }
    }

    /// The bytes that a token stands for. `special` renders control and unknown
    /// tokens by their text instead of as nothing. An id outside the vocabulary has
    /// no bytes.
    pub fn token_bytes(&self, id: u32, special: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_token_bytes(id, special, &mut bytes);
        bytes
    }

    /// Appends the bytes of a token to `bytes`, see [`token_bytes`](Self::token_bytes).
    pub fn append_token_bytes(&self, id: u32, special: bool, bytes: &mut Vec<u8>) {
        let text = self.vocabulary.text(id);
        match self.vocabulary.kind(id) {
            TokenKind::Control | TokenKind::Unknown if !special => {}
            TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => {
                bytes.extend_from_slice(text);
            }
            TokenKind::Normal => match &self.family {
                Family::BytePair(_) => append_from_alphabet(text, bytes),
                Family::Rwkv(_) => bytes.extend_from_slice(text),
                _ => append_unescaped(text, bytes),
            },
            TokenKind::Byte => bytes.extend(spelt_byte(text)),
            TokenKind::Undefined | TokenKind::Unused => {}
        }
    }

    /// The most bytes that a token can stand for.
    pub fn token_bytes_max(&self) -> usize {
        // Stored texts are escaped, which never makes them shorter.
        self.vocabulary.token_bytes_max()
    }

    /// Whether the model puts a space before every text.
    pub(crate) fn adds_space_prefix(&self) -> bool {
        match &self.family {
            Family::SentencePiece(encoder) => encoder.add_space_prefix,
            Family::Unigram(encoder) => encoder.add_space_prefix,
            Family::BytePair(_) | Family::WordPiece(_) | Family::Rwkv(_) => false,
        }
    }

    /// Heap bytes held, counted against the memory budget.
    pub fn heap_bytes(&self) -> usize {
        let family = match &self.family {
            Family::BytePair(encoder) => size_of::<BytePair>() + encoder.heap_bytes(),
            Family::SentencePiece(encoder) => size_of::<SentencePiece>() + encoder.heap_bytes(),
            Family::WordPiece(encoder) => size_of::<WordPiece>() + encoder.heap_bytes(),
            Family::Unigram(encoder) => size_of::<Unigram>() + encoder.heap_bytes(),
            Family::Rwkv(encoder) => size_of::<Rwkv>() + encoder.heap_bytes(),
        };
        let warnings = self.warnings.capacity() * size_of::<TokenizerWarning>();
        self.vocabulary.heap_bytes()
            + self.special.heap_bytes()
            + self.roles.heap_bytes()
            + family
            + warnings
    }
}

/// Takes what a family needs besides the vocabulary.
type TakeFamily = fn(
    &mut Metadata,
    &mut Vocabulary,
    &mut Vec<TokenizerWarning>,
) -> Result<(Family, Roles), TokenizerError>;

fn byte_pair_family(
    metadata: &mut Metadata,
    vocabulary: &mut Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(Family, Roles), TokenizerError> {
    let encoder = BytePair::take(metadata, vocabulary, warnings)?;
    let defaults = RoleDefaults {
        adds_bos: encoder.adds_bos(),
        ..RoleDefaults::default()
    };
    let roles = Roles::new(metadata, vocabulary, defaults, warnings)?;
    Ok((Family::BytePair(Box::new(encoder)), roles))
}

fn sentence_piece_family(
    metadata: &mut Metadata,
    vocabulary: &mut Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(Family, Roles), TokenizerError> {
    let defaults = RoleDefaults {
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        adds_bos: true,
        ..RoleDefaults::default()
    };
    let roles = Roles::new(metadata, vocabulary, defaults, warnings)?;
    let add_space_prefix = metadata.bool(ADD_SPACE_PREFIX)?.unwrap_or(true);
    let encoder = SentencePiece::new(vocabulary, Order::Scores, add_space_prefix, roles.unknown);
    warnings.extend(encoder.missing_bytes());
    Ok((Family::SentencePiece(Box::new(encoder)), roles))
}

fn ranked_sentence_piece_family(
    metadata: &mut Metadata,
    vocabulary: &mut Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(Family, Roles), TokenizerError> {
    let merges = MergeTable::take(metadata, vocabulary, warnings)?;
    let mut roles = Roles::new(metadata, vocabulary, RoleDefaults::default(), warnings)?;
    // The model needs BOS, and files exist that say no.
    roles.adds_bos = roles.bos.is_some();
    let add_space_prefix = metadata.bool(ADD_SPACE_PREFIX)?.unwrap_or(false);
    let order = Order::Ranks(merges);
    let encoder = SentencePiece::new(vocabulary, order, add_space_prefix, None);
    warnings.extend(encoder.missing_bytes());
    Ok((Family::SentencePiece(Box::new(encoder)), roles))
}

fn word_piece_family(
    metadata: &mut Metadata,
    vocabulary: &mut Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(Family, Roles), TokenizerError> {
    let defaults = RoleDefaults {
        bos: Some(101),
        unknown: Some(100),
        separator: Some(102),
        adds_bos: true,
        ..RoleDefaults::default()
    };
    let roles = Roles::new(metadata, vocabulary, defaults, warnings)?;
    let encoder = WordPiece::new(metadata, vocabulary, roles.unknown)?;
    Ok((Family::WordPiece(Box::new(encoder)), roles))
}

fn unigram_family(
    metadata: &mut Metadata,
    vocabulary: &mut Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(Family, Roles), TokenizerError> {
    let defaults = RoleDefaults {
        eos: Some(1),
        unknown: Some(2),
        adds_eos: true,
        ..RoleDefaults::default()
    };
    let roles = Roles::new(metadata, vocabulary, defaults, warnings)?;
    let encoder = Unigram::take(metadata, vocabulary, roles.unknown)?;
    Ok((Family::Unigram(Box::new(encoder)), roles))
}

fn rwkv_family(
    metadata: &mut Metadata,
    vocabulary: &mut Vocabulary,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(Family, Roles), TokenizerError> {
    let roles = Roles::new(metadata, vocabulary, RoleDefaults::default(), warnings)?;
    let encoder = Rwkv::new(vocabulary, roles.unknown)?;
    Ok((Family::Rwkv(Box::new(encoder)), roles))
}

/// Whether white space after a special token is dropped. No key says so; llama.cpp
/// goes by the model's name, too.
fn strips_space(metadata: &Metadata) -> Result<bool, MetadataError> {
    let name = metadata.str("general.name")?.unwrap_or_default();
    let name = name.to_ascii_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}

/// Characters outside the byte alphabet stand for themselves.
fn append_from_alphabet(text: &[u8], bytes: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match byte_alphabet::byte(character) {
                Some(byte) => bytes.push(byte),
                None => {
                    let mut encoded = [0; 4];
                    bytes.extend_from_slice(character.encode_utf8(&mut encoded).as_bytes());
                }
            }
        }
        bytes.extend_from_slice(chunk.invalid());
    }
}

fn append_unescaped(mut text: &[u8], bytes: &mut Vec<u8>) {
    while let Some((&first, rest)) = text.split_first() {
        text = match text.strip_prefix(ESCAPED_SPACE.as_bytes()) {
            Some(rest) => {
                bytes.push(b' ');
                rest
            }
            None => {
                bytes.push(first);
                rest
            }
        };
    }
}

/// The byte of a text `<0xNN>`.
fn spelt_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}
