//! Tensors that no operation uses. What is known to belong to no text model is left out, by
//! name and reason. Anything else is an error: an answer without it could be wrong.

use std::ops::Range;

use emel_loader::gguf::Catalog;

use crate::error::ModelError;
use crate::hyperparameters::Hyperparameters;
use crate::keys::Keys;

/// A part of the file that no text model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedPart {
    /// What its tensors' names have in common: `blk.47.*`.
    pub name: String,
    /// What it is for.
    pub purpose: &'static str,
    /// Number of its tensors.
    pub tensors: usize,
    /// Bytes of them in the file.
    pub bytes: u64,
}

/// A part that files are known to have besides the text model.
struct KnownPart {
    /// Architectures that have it; any, if there are none.
    architectures: &'static [&'static str],
    names: Names,
    purpose: &'static str,
}

/// The tensors of a part.
enum Names {
    /// Those of the blocks after the text model's, of as many as the file says it has.
    BlocksAhead,
    /// Those whose name starts so.
    Prefix(&'static str),
    /// Those whose name ends so, in place of the `weight` of a matrix in use.
    BesideMatrix(&'static str),
}

const KNOWN: &[KnownPart] = &[
    KnownPart {
        architectures: &["deepseek2", "glm4moe", "qwen35moe"],
        names: Names::BlocksAhead,
        purpose: "multi-token prediction",
    },
    KnownPart {
        architectures: &["qwen3"],
        names: Names::Prefix("cls.output."),
        purpose: "scores of a reranker",
    },
    KnownPart {
        architectures: &["gemma3", "lfm2", "lfm2moe"],
        names: Names::Prefix("dense_2."),
        purpose: "embeddings of texts",
    },
    KnownPart {
        architectures: &["gemma3"],
        names: Names::Prefix("dense_3."),
        purpose: "embeddings of texts",
    },
    KnownPart {
        architectures: &[],
        names: Names::Prefix("v."),
        purpose: "images",
    },
    KnownPart {
        architectures: &[],
        names: Names::Prefix("mm."),
        purpose: "images",
    },
    KnownPart {
        architectures: &[],
        names: Names::BesideMatrix("input_scale"),
        purpose: "inputs rounded to 4 bits, which are more exact here",
    },
];

impl Names {
    /// What the names of the part that has this tensor have in common, if it is of this kind.
    fn common(
        &self,
        name: &str,
        blocks_ahead: &Range<usize>,
        is_matrix: impl Fn(&str) -> bool,
    ) -> Option<String> {
        match self {
            Self::BlocksAhead => {
                let (block, _) = name.strip_prefix("blk.")?.split_once('.')?;
                let number = block.parse().ok()?;
                blocks_ahead
                    .contains(&number)
                    .then(|| format!("blk.{block}.*"))
            }
            Self::Prefix(prefix) => name.starts_with(prefix).then(|| format!("{prefix}*")),
            Self::BesideMatrix(kind) => {
                let matrix = name.strip_suffix(kind).filter(|it| it.ends_with('.'))?;
                is_matrix(&format!("{matrix}weight")).then(|| format!("*.{kind}"))
            }
        }
    }
}

/// Sees to it that blocks that are left out predict further tokens, and are no layers. A file
/// may have their number and not the blocks.
fn check_blocks_ahead(
    catalog: &Catalog,
    architecture: &str,
    mut blocks: Range<usize>,
) -> Result<(), ModelError> {
    let ahead = blocks.len();
    let has = |prefix: &str| {
        let mut tensors = catalog.tensors().iter();
        tensors.any(|tensor| tensor.name.starts_with(prefix))
    };
    let is_layer = |block: &usize| {
        let prefix = format!("blk.{block}.");
        has(&prefix) && !has(&format!("{prefix}nextn."))
    };
    let Some(layer) = blocks.find(is_layer) else {
        return Ok(());
    };
    Err(Keys::new(catalog, architecture).refuse(
        "nextn_predict_layers",
        ahead,
        &format!("fewer: block {layer} has no `nextn.*` tensors, so it is a layer"),
    ))
}

/// The parts that `is_used` leaves out of the catalog's tensors.
///
/// # Errors
/// When one of these tensors is of no known part.
pub(super) fn unused_parts(
    catalog: &Catalog,
    shape: &Hyperparameters,
    is_used: &[bool],
) -> Result<Vec<UnusedPart>, ModelError> {
    let architecture = shape.architecture.as_str();
    let blocks_ahead = shape.layers..shape.blocks;
    check_blocks_ahead(catalog, architecture, blocks_ahead.clone())?;
    let is_matrix = |name: &str| {
        let used = catalog.tensor_index(name).filter(|&index| is_used[index]);
        used.is_some_and(|index| catalog.tensors()[index].dims.len() > 1)
    };
    let mut parts: Vec<UnusedPart> = Vec::new();
    let mut unknown = Vec::new();
    let tensors = catalog.tensors().iter().zip(is_used);
    for (tensor, _) in tensors.filter(|(_, is_used)| !**is_used) {
        let known = KNOWN
            .iter()
            .filter(|known| {
                known.architectures.is_empty() || known.architectures.contains(&architecture)
            })
            .find_map(|known| {
                let name = known.names.common(&tensor.name, &blocks_ahead, is_matrix)?;
                Some((name, known.purpose))
            });
        let Some((name, purpose)) = known else {
            unknown.push(tensor.name.as_str());
            continue;
        };
        let place = parts.iter().position(|part| part.name == name);
        let place = place.unwrap_or_else(|| {
            parts.push(UnusedPart {
                name,
                purpose,
                tensors: 0,
                bytes: 0,
            });
            parts.len() - 1
        });
        parts[place].tensors += 1;
        parts[place].bytes += tensor.extent.bytes;
    }
    match unknown.split_first() {
        None => Ok(parts),
        Some((name, others)) => Err(ModelError::UnusedTensor {
            name: (*name).to_owned(),
            others: others.len(),
            architecture: architecture.to_owned(),
        }),
    }
}
