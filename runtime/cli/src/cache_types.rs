//! `-ctk` and `-ctv`: llama.cpp keeps keys and values apart, emel alike.

use std::ffi::{OsStr, OsString};

/// What llama.cpp keeps keys and values as by default.
const CACHE_TYPE_DEFAULT: &str = "f16";

/// Types of keys and values that emel has, the coarsest first, and those of llama.cpp that are
/// no finer.
const CACHE_TYPES: [(&str, &[&str]); 3] = [
    ("q8_0", &["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]),
    (CACHE_TYPE_DEFAULT, &[CACHE_TYPE_DEFAULT]),
    ("f32", &["f32", "bf16"]),
];

/// The flags that say how keys and values are to be kept, and what they say.
#[derive(Debug, Default)]
pub(super) struct CacheTypes {
    pub(super) keys: Option<(String, OsString)>,
    pub(super) values: Option<(String, OsString)>,
}

/// How keys and values are kept.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) kind: &'static str,
    /// What the user should know if it is not as they asked.
    pub(super) note: Option<String>,
}

impl CacheTypes {
    /// The type of both, which is none coarser than asked for, or the flags and why they cannot
    /// be taken.
    pub(super) fn kept(self) -> Result<Option<Kept>, (String, String)> {
        let given: Vec<_> = [&self.keys, &self.values].into_iter().flatten().collect();
        if given.is_empty() {
            return Ok(None);
        }
        let shown = |(name, kind): &(String, OsString)| format!("{name} {}", kind.display());
        let names = given.iter().map(|it| shown(it)).collect::<Vec<_>>();
        let names = names.join(" ");
        let place = |given: &Option<(String, OsString)>| {
            let kind = given
                .as_ref()
                .map_or(CACHE_TYPE_DEFAULT.as_ref(), |it| &*it.1);
            let mut all = CACHE_TYPES.iter();
            all.position(|(_, kinds)| kinds.iter().any(|known| kind == OsStr::new(known)))
        };
        let (Some(keys), Some(values)) = (place(&self.keys), place(&self.values)) else {
            let known = CACHE_TYPES.map(|(_, kinds)| kinds.join(", ")).join(", ");
            return Err((names, format!("expected types of {known}")));
        };
        let kind = CACHE_TYPES[keys.max(values)].0;
        let is_as_asked = keys == values && given.iter().all(|(_, asked)| asked == kind);
        let note = (!is_as_asked)
            .then(|| format!("{names}: keys and values are kept as {kind}, which is no coarser"));
        Ok(Some(Kept { kind, note }))
    }
}
