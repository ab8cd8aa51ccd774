//! The merge rules of byte-pair encoding: which two tokens become which, and how
//! early.
//!
//! 280,000 rules as a hash table of records would take 9 MB; grouped by their left
//! token and sorted by the right one they take 12 bytes each.

use emel_loader::gguf::{Metadata, StringTable};

use super::error::{TokenizerError, TokenizerWarning};
use super::symbol_chain::{Join, Symbol};
use super::vocabulary::{Vocabulary, take_strings};

const MERGES: &str = "tokenizer.ggml.merges";

/// What two tokens become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Merge {
    /// Its place among the rules; lower merges first.
    rank: u32,
    /// The token the two become.
    token: u32,
}

/// All rules, by the ids of their parts.
#[derive(Debug)]
pub(super) struct MergeTable {
    /// Where the rules of each left token start, and the end of the last.
    starts: Vec<u32>,
    rights: Vec<u32>,
    merges: Vec<Merge>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    left: u32,
    right: u32,
    rank: u32,
    token: u32,
}

impl MergeTable {
    /// Takes the rules out of `metadata`.
    ///
    /// A rule whose parts or result are no tokens cannot be expressed in ids and is
    /// left out with a warning; of rules for the same pair the first one holds.
    pub(super) fn take(
        metadata: &mut Metadata,
        vocabulary: &Vocabulary,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        let texts = Metadata::required(
            take_strings(metadata, MERGES)?,
            MERGES,
            "an array of strings",
        )?;
        let mut rules = resolve(&texts, vocabulary)?;
        let count = texts.len() - rules.len();
        drop(texts);
        if count > 0 {
            warnings.push(TokenizerWarning::UnusableMerges { count });
        }
        rules.sort_unstable();
        rules.dedup_by_key(|rule| (rule.left, rule.right));
        Ok(Self::from_sorted(&rules, vocabulary.len()))
    }

    fn from_sorted(rules: &[Rule], tokens: usize) -> Self {
        let mut starts = vec![0; tokens + 1];
        for rule in rules {
            starts[rule.left as usize + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        let merge = |rule: &Rule| Merge {
            rank: rule.rank,
            token: rule.token,
        };
        Self {
            starts,
            rights: rules.iter().map(|rule| rule.right).collect(),
            merges: rules.iter().map(merge).collect(),
        }
    }

    /// How two neighbours join: those of the lowest rank first.
    pub(super) fn join(&self, left: &Symbol, right: &Symbol) -> Option<Join> {
        let merge = self.get(left.token, right.token)?;
        Some(Join {
            priority: !merge.rank,
            token: merge.token,
        })
    }

    /// What `left` followed by `right` becomes.
    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let left = left as usize;
        let end = *self.starts.get(left.checked_add(1)?)? as usize;
        let start = self.starts[left] as usize;
        let index = self.rights[start..end].binary_search(&right).ok()?;
        Some(self.merges[start + index])
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.starts.capacity() * size_of::<u32>()
            + self.rights.capacity() * size_of::<u32>()
            + self.merges.capacity() * size_of::<Merge>()
    }
}

/// The rules that can be expressed in ids.
fn resolve(texts: &StringTable, vocabulary: &Vocabulary) -> Result<Vec<Rule>, TokenizerError> {
    let mut rules = Vec::with_capacity(texts.len());
    let mut joined = Vec::with_capacity(vocabulary.token_bytes_max());
    for (index, text) in texts.iter().enumerate() {
        // The first part may itself begin with the separator.
        let space = text.iter().skip(1).position(|&byte| byte == b' ');
        let Some(space) = space.map(|position| position + 1) else {
            let rule = String::from_utf8_lossy(text).into_owned();
            return Err(TokenizerError::Merge { index, rule });
        };
        let (left, right) = (&text[..space], &text[space + 1..]);
        joined.clear();
        joined.extend_from_slice(left);
        joined.extend_from_slice(right);
        let ids = vocabulary.id(left).zip(vocabulary.id(right));
        if let Some(((left, right), token)) = ids.zip(vocabulary.id(&joined)) {
            let rank = index as u32;
            rules.push(Rule {
                left,
                right,
                rank,
                token,
            });
        }
    }
    Ok(rules)
}
