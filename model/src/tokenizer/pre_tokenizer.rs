//! Cutting a text into words, across which byte-pair encoding never joins.
//!
//! A model is tied to the expressions it was trained with, which its file names in
//! `tokenizer.ggml.pre`. Some names stand for several passes: each pass cuts the
//! pieces of the one before, at its matches and between them.

use std::ops::Range;

use emel_loader::gguf::Metadata;
use fancy_regex::{Regex, RegexBuilder};

use super::error::{TokenizerError, TokenizerWarning};

const PRE: &str = "tokenizer.ggml.pre";

/// One way of cutting.
struct Row {
    /// Names in files; the first one stands for the row.
    names: &'static [&'static str],
    /// Expressions, applied one after the other.
    passes: &'static [&'static str],
    /// A word that is a token is not merged up from its bytes.
    ignores_merges: bool,
    /// Texts begin with the BOS token unless the file says otherwise.
    adds_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Letters with case, of the Unicode version that the model was made with.
const DEEPSEEK_LETTERS: &str = "\\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+";
const KIMI: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// The first row is the fallback.
///
/// Where llama.cpp approximates an expression that its own engine lacks (classes of
/// case and marks in `gpt-4o`, `tekken` and `kimi-k2`), the model's own stands here.
const ROWS: &[Row] = &[
    Row {
        names: &["default"],
        passes: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "modern-bert",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
        ],
        passes: &[GPT2],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        passes: &[r"\p{N}", GPT2],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        passes: &[LLAMA3],
        ignores_merges: true,
        adds_bos: true,
    },
    Row {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        passes: &[LLAMA3],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "kormo",
            "f2llmv2",
        ],
        passes: &[QWEN2],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["qwen35"],
        passes: &[QWEN35],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        passes: &[GPT4O],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["tekken"],
        passes: &[TEKKEN],
        ignores_merges: true,
        adds_bos: true,
    },
    Row {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        passes: &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["deepseek-coder"],
        passes: &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            "[一-龥\u{800}-一가-\u{d7ff}]+",
            r"\p{N}",
        ],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["deepseek-llm"],
        passes: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            "\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
            r"\s+$",
            "[一-龥\u{800}-一가-\u{d7ff}]+",
            r"\p{N}+",
        ],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["kimi-k2"],
        passes: &[KIMI],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["youtu"],
        passes: &[
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
            YOUTU,
        ],
        ignores_merges: true,
        adds_bos: false,
    },
    Row {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        passes: &[BAILING],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["seed-coder"],
        passes: &[SEED_CODER],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["minicpm5"],
        passes: &[r"\p{N}{1,3}", LLAMA3],
        ignores_merges: true,
        adds_bos: false,
    },
    Row {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        passes: &[BLOOM],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["viking"],
        passes: &[BLOOM, r"\p{N}"],
        ignores_merges: false,
        adds_bos: false,
    },
    Row {
        names: &["falcon"],
        passes: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        ignores_merges: false,
        adds_bos: false,
    },
];

/// Cache of the lazy automata of one expression. The library's own limit is 2 MiB,
/// of which an expression of these has several.
const AUTOMATON_CACHE_BYTES: usize = 256 << 10;

/// How much text an expression gets to see after it has given up on the whole: one
/// that backtracks over each of these bytes is far from the library's limits.
const RETRY_BYTES: usize = 64 << 10;

/// The expressions of one row, ready to cut.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    passes: Vec<Regex>,
    ignores_merges: bool,
    adds_bos: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer a file names, or the default one and a warning.
    pub(super) fn from_metadata(
        metadata: &Metadata,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        let name = metadata.str(PRE)?;
        let row = ROWS
            .iter()
            .find(|row| row.names.iter().any(|&own| Some(own) == name));
        let row = row.unwrap_or_else(|| {
            warnings.push(match name {
                Some(found) => TokenizerWarning::UnknownPreTokenizer {
                    found: found.to_owned(),
                },
                None => TokenizerWarning::MissingPreTokenizer,
            });
            &ROWS[0]
        });
        Self::compile(row)
    }

    fn compile(row: &Row) -> Result<Self, TokenizerError> {
        let passes = row.passes.iter().map(|expression| {
            let mut builder = RegexBuilder::new(expression);
            // The expressions are ours and take time linear in a match, so only
            // the library's limit on its stack is left to run into.
            builder.backtrack_limit(usize::MAX);
            builder.delegate_dfa_size_limit(AUTOMATON_CACHE_BYTES);
            builder.build().map_err(|error| TokenizerError::Expression {
                pre: row.names[0],
                reason: error.to_string(),
            })
        });
        Ok(Self {
            passes: passes.collect::<Result<_, _>>()?,
            ignores_merges: row.ignores_merges,
            adds_bos: row.adds_bos,
        })
    }

    /// Whether a word that is a token is taken as it is.
    pub(super) fn ignores_merges(&self) -> bool {
        self.ignores_merges
    }

    /// Whether texts begin with the BOS token when the file does not say.
    pub(super) fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Cuts `text` into words. They follow each other without gaps.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::from_iter((!text.is_empty()).then_some(0..text.len()));
        let mut cut = Vec::new();
        for expression in &self.passes {
            cut.clear();
            for piece in &pieces {
                // An expression must not look past the ends of its piece.
                split_piece(expression, &text[piece.clone()], piece.start, &mut cut);
            }
            std::mem::swap(&mut pieces, &mut cut);
        }
        pieces
    }

    /// Heap bytes held, an estimate that no row passes.
    pub(super) fn heap_bytes(&self) -> usize {
        EXPRESSIONS_BYTES
    }
}

/// The regex library does not say what it holds. Measured with an allocator that
/// counts, the rows above take 0.3 to 0.9 MB once they have cut some texts.
const EXPRESSIONS_BYTES: usize = 1 << 20;

/// Appends the matches in `text` and what is between them, moved by `offset`.
fn split_piece(expression: &Regex, text: &str, offset: usize, cut: &mut Vec<Range<usize>>) {
    let mut position = 0;
    while position < text.len() {
        let found = find(expression, text, position);
        if position < found.start {
            cut.push(offset + position..offset + found.start);
        }
        if !found.is_empty() {
            cut.push(offset + found.start..offset + found.end);
        }
        position = found.end;
    }
}

/// The next match, or an empty one at the end. When the expression gives up, the
/// match within a shorter text is taken instead: that may cut a very long word,
/// but loses nothing.
fn find(expression: &Regex, text: &str, position: usize) -> Range<usize> {
    let mut window = text;
    loop {
        match expression.find_from_pos(window, position) {
            Ok(Some(found)) if !found.range().is_empty() => return found.range(),
            // Without a match that moves on, the rest of the window is one piece.
            Ok(_) => return window.len()..window.len(),
            Err(_) => {
                let end = character_boundary(text, position + RETRY_BYTES);
                if window.len() <= end {
                    return window.len()..window.len();
                }
                window = &text[..end];
            }
        }
    }
}

/// The last boundary between characters at or before `index`.
pub(super) fn character_boundary(text: &str, index: usize) -> usize {
    if index >= text.len() {
        return text.len();
    }
    let boundary = (0..=index)
        .rev()
        .find(|&place| text.is_char_boundary(place));
    boundary.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use emel_tests::programs::thread_seconds;

    use super::*;

    fn named(name: &str) -> PreTokenizer {
        let row = ROWS.iter().find(|row| row.names.contains(&name)).unwrap();
        PreTokenizer::compile(row).unwrap()
    }

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let pieces = named(name).split(text);
        pieces.into_iter().map(|piece| &text[piece]).collect()
    }

    #[test]
    fn every_row_compiles_and_no_name_is_in_two() {
        let mut names: Vec<&str> = Vec::new();
        for row in ROWS {
            PreTokenizer::compile(row).unwrap();
            names.extend(row.names);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_row_keeps_every_byte_in_order() {
        let text = "I'll pay 12345 €, naïve\t\n\n  日本語 مرحبا 👨‍👩‍👧 x==1;\r\n   ";
        for row in ROWS {
            let joined = words(row.names[0], text).concat();
            assert_eq!(joined, text, "{}", row.names[0]);
        }
    }

    #[test]
    fn smollm_cuts_digits_one_by_one_and_first() {
        let expected = ["x", " ", "1", "2", " years"];
        assert_eq!(words("smollm", "x 12 years"), expected);
    }

    #[test]
    fn llama3_cuts_digits_in_threes_and_qwen2_one_by_one() {
        assert_eq!(words("llama3", "12345"), ["123", "45"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
    }

    #[test]
    fn the_last_space_of_a_run_goes_with_the_word() {
        assert_eq!(words("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words("gpt-2", "a\t\tb  "), ["a", "\t", "\t", "b", "  "]);
    }

    #[test]
    fn words_change_case_once_in_the_gpt_4o_row() {
        assert_eq!(
            words("gpt-4o", "CamelCase HTTPServer"),
            ["Camel", "Case", " HTTPServer"]
        );
    }

    #[test]
    fn kimi_keeps_chinese_apart_and_changes_case_once() {
        assert_eq!(
            words("kimi-k2", "用getUserName查12345"),
            ["用", "get", "User", "Name", "查", "123", "45"]
        );
    }

    #[test]
    fn deepseek_llm_cuts_lines_letters_punctuation_and_numbers() {
        assert_eq!(
            words("deepseek-llm", "Hi, world 2024!\n中文 Öl  "),
            [
                "Hi", ",", " world", " ", "2024", "!", "\n", "中文", " Ö", "l", "  "
            ]
        );
    }

    #[test]
    fn every_row_takes_time_in_proportion_to_the_text() {
        let units = [
            "a", "A", " ", "\n", "1", "é", "\u{301}", "日", "'s", " \n", "aB1 ", "!", "( ",
        ];
        for row in ROWS {
            let pre_tokenizer = PreTokenizer::compile(row).unwrap();
            for unit in units {
                let time = |bytes: usize| {
                    let text = unit.repeat(bytes / unit.len());
                    thread_seconds(|| drop(pre_tokenizer.split(&text)))
                };
                // Quadratic work would take a hundred times as long, not ten.
                let (short, long) = (time(100_000), time(1_000_000));
                let name = row.names[0];
                assert!(
                    long < 40.0 * short.max(0.02),
                    "{name} {unit:?}: {short} s and {long} s"
                );
            }
        }
    }

    #[test]
    fn runs_beyond_the_stack_of_the_regex_library_lose_nothing() {
        for unit in [" ", "\u{3000}", "\n"] {
            let text = format!("start{}end", unit.repeat(1_200_000));
            assert_eq!(words("llama3", &text).concat(), text);
        }
    }
}
