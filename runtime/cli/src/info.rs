//! `emel info`: what a model's file holds, and whether and how it would run.

use anyhow::bail;
use clap::Args;
use emel_kernels::Format;
use emel_loader::gguf::{Array, Catalog, Metadata, Value};
use emel_model::arch;
use emel_model::chat::{ChatTemplates, SpecialTexts};
use emel_model::keys::Keys;
use emel_model::program::UnusedPart;
use serde::Serialize;

use super::plan::of_run;
use super::remedies::in_options;
use super::{ModelOptions, one_line, print};
use emel::Error;
use emel::internals::blueprint::Blueprint;
use emel::internals::budget::in_binary_units;

/// Characters of the chat template that are shown.
const TEMPLATE_START: usize = 72;

/// Columns of a line, and of the names at its beginning.
const COLUMNS: usize = 80;
const NAME_COLUMNS: usize = 14;

/// Tokens with a job, by their keys' names.
const SPECIAL: [&str; 10] = [
    "bos",
    "eos",
    "eot",
    "eom",
    "unknown",
    "seperator",
    "padding",
    "cls",
    "mask",
    "fim_pre",
];

/// Options of `emel info`.
#[derive(Debug, Args)]
pub struct InfoOptions {
    #[command(flatten)]
    model: ModelOptions,

    /// Tokens in the context; 0 for as many as the model was trained for [default: as many as
    /// the model and the budget allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    ctx_size: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info {
    files: Vec<String>,
    file_bytes: u64,
    alignment: u32,
    name: Option<String>,
    architecture: Option<String>,
    supported: bool,
    /// Why the model does not run, or not with this budget.
    problem: Option<String>,
    supported_architectures: Vec<&'static str>,
    parameters: u64,
    types: Vec<TypeShare>,
    /// Parts of a file that runs which the model does without.
    unused: Vec<UnusedInfo>,
    /// In the order they are shown in.
    hyperparameters: serde_json::Map<String, serde_json::Value>,
    /// Keys under the architecture's prefix by which nothing is computed.
    unused_keys: Vec<String>,
    /// What a user should know of the file.
    notes: Vec<String>,
    tokenizer: TokenizerInfo,
    chat_template: Option<TemplateInfo>,
    plan: Option<PlanInfo>,
}

#[derive(Serialize)]
struct TypeShare {
    name: &'static str,
    supported: bool,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct UnusedInfo {
    name: String,
    purpose: &'static str,
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct TokenizerInfo {
    model: Option<String>,
    pre: Option<String>,
    tokens: usize,
    special: Vec<SpecialToken>,
    /// What is odd about the vocabulary, where the model runs.
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct SpecialToken {
    job: &'static str,
    id: u32,
    text: String,
}

#[derive(Serialize)]
struct TemplateInfo {
    names: Vec<String>,
    /// The one that is shown: what a conversation gets, or, where it gets `ChatML`, what one
    /// with tools does.
    bytes: usize,
    start: String,
    chatml_without_tools: bool,
    problem: Option<String>,
}

#[derive(Serialize)]
struct PlanInfo {
    budget_bytes: u64,
    context: usize,
    kv_bytes: u64,
    mapped: bool,
    pinned_bytes: u64,
    streamed_bytes_per_pass: u64,
    /// Experts that fit, and all of them, where they are not the same.
    experts_of: Option<(usize, usize)>,
}

/// Prints what there is to know.
///
/// # Errors
/// When the file is no GGUF file that can be read, or an option or the environment makes
/// no sense; and, once all is printed, when the model cannot be run.
pub fn run(options: &InfoOptions) -> anyhow::Result<()> {
    let mut catalog = Catalog::open(&options.model.model)?;
    let templates = ChatTemplates::take(catalog.metadata_mut(), SpecialTexts::default());
    let mut info = Info::read(&catalog, &templates);
    drop(catalog);
    let mut settings = options.model.settings();
    settings.context = options.ctx_size;
    match of_run(&options.model.model, settings, None) {
        Ok(blueprint) => {
            let warnings = blueprint.tokenizer.warnings().iter();
            info.tokenizer.warnings = warnings.map(ToString::to_string).collect();
            info.plan = Some(PlanInfo::of(&blueprint));
            info.notes.clone_from(&blueprint.program.notes);
        }
        Err(error @ Error::BudgetTooSmall { .. }) => info.problem = Some(in_options(&error)),
        // The path is known here.
        Err(Error::Model { source, .. }) => info.refuse(&source),
        Err(Error::Tokenizer { source, .. }) => info.refuse(&source),
        Err(error) => return Err(error.into()),
    }
    if options.json {
        print(&(serde_json::to_string_pretty(&info)? + "\n"))?;
    } else {
        print(&info.text())?;
    }
    let path = options.model.model.display();
    match info.problem {
        // It names the file.
        Some(problem) if info.supported => bail!(problem),
        Some(problem) => bail!("{path}: {problem}"),
        None => Ok(()),
    }
}

impl InfoOptions {
    /// What is wrong with the numbers among them.
    pub fn faults(&self) -> Vec<String> {
        self.model.computing.faults(self.ctx_size)
    }
}

impl Info {
    fn read(catalog: &Catalog, templates: &ChatTemplates) -> Self {
        let metadata = catalog.metadata();
        let architecture = text(metadata, "general.architecture");
        let alignment = metadata.u32("general.alignment").ok().flatten();
        Self {
            files: catalog
                .files()
                .iter()
                .map(|file| file.path.display().to_string())
                .collect(),
            file_bytes: catalog.file_bytes(),
            alignment: alignment.unwrap_or(32),
            name: text(metadata, "general.name"),
            supported: true,
            problem: None,
            supported_architectures: arch::supported().collect(),
            parameters: catalog.tensors().iter().map(elements).sum(),
            types: types(catalog),
            unused: unused(catalog),
            hyperparameters: hyperparameters(metadata, architecture.as_deref().unwrap_or("")),
            unused_keys: unused_keys(catalog),
            notes: Vec::new(),
            tokenizer: TokenizerInfo::read(metadata),
            chat_template: TemplateInfo::read(templates),
            architecture,
            plan: None,
        }
    }

    fn refuse(&mut self, problem: &impl ToString) {
        self.supported = false;
        self.problem = Some(problem.to_string());
    }

    fn text(&self) -> String {
        let mut lines = Lines(String::new());
        lines.add("name", or_none(self.name.as_ref()));
        lines.add("architecture", or_none(self.architecture.as_ref()));
        self.add_tensors(&mut lines);
        for (name, value) in &self.hyperparameters {
            let value = value.as_str().map_or(value.to_string(), str::to_owned);
            lines.add(&name.replace('_', " "), &value);
        }
        if !self.unused_keys.is_empty() {
            lines.add("unused keys", &self.unused_keys.join(", "));
        }
        self.tokenizer.add_to(&mut lines);
        match &self.chat_template {
            None => lines.add("chat template", "none; ChatML would be used"),
            Some(template) => {
                lines.add("chat template", &template.summary());
                lines.add("", template.problem.as_ref().unwrap_or(&template.start));
            }
        }
        match (&self.plan, self.supported) {
            (Some(plan), _) => lines.add("runs", &plan.summary()),
            (None, true) => lines.add("runs", "not within this budget"),
            (None, false) => lines.add("runs", "no"),
        }
        let notes = self.notes.iter().map(|note| format!("note: {note}"));
        for text in self.problem.iter().cloned().chain(notes) {
            lines.add("", &text);
        }
        lines.0
    }

    fn add_tensors(&self, lines: &mut Lines) {
        let size = in_binary_units;
        let files = match self.files.len() {
            1 => "one file".to_owned(),
            count => format!("{count} shards"),
        };
        let (bytes, alignment) = (size(self.file_bytes), self.alignment);
        let text = format!("{bytes} in {files}, aligned to {alignment} bytes");
        lines.add("size", &text);
        let all_bytes: u64 = self.types.iter().map(|share| share.bytes).sum();
        let bits = all_bytes as f64 * 8.0 / self.parameters.max(1) as f64;
        let parameters = in_millions(self.parameters);
        lines.add("parameters", &format!("{parameters}, {bits:.1} bits each"));
        for share in &self.types {
            let TypeShare { name, tensors, .. } = share;
            let (bytes, parameters) = (size(share.bytes), in_millions(share.parameters));
            let percent = share.bytes as f64 * 100.0 / all_bytes.max(1) as f64;
            let note = match share.supported {
                true => "",
                false => ", not supported",
            };
            let text = format!(
                "{name:<8} {bytes:>11} {percent:>3.0}%  {parameters} in {tensors} tensors{note}"
            );
            lines.add("", &text);
        }
        for part in &self.unused {
            let UnusedInfo { name, purpose, .. } = part;
            let (tensors, bytes) = (part.tensors, size(part.bytes));
            let plural = if tensors == 1 { "" } else { "s" };
            let text = format!("{name} ({purpose}), {bytes} in {tensors} tensor{plural}");
            lines.add("not used", &text);
        }
    }
}

/// Lines that begin with a name.
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: &str) {
        let value = one_line(value);
        for (index, part) in wrapped(&value, COLUMNS - NAME_COLUMNS).enumerate() {
            let name = if index == 0 { name } else { "" };
            self.0 += &format!("{name:<NAME_COLUMNS$}{part}\n");
        }
    }
}

fn or_none(text: Option<&String>) -> &str {
    text.map_or("(none)", String::as_str)
}

/// The text in lines of at most `columns` characters, as far as there are spaces to break it at.
fn wrapped(text: &str, columns: usize) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        // A space behind the last column is where a line may end, too.
        let Some((last, next)) = text.char_indices().nth(columns) else {
            return Some(text);
        };
        let (line, more) = match text[..last + next.len_utf8()].rfind(' ') {
            Some(space) if !text[..space].trim().is_empty() => (&text[..space], &text[space + 1..]),
            _ => text.split_once(' ').unwrap_or((text, "")),
        };
        rest = (!more.is_empty()).then_some(more);
        Some(line)
    })
}

impl PlanInfo {
    fn of(blueprint: &Blueprint) -> Self {
        let plan = &blueprint.plan;
        Self {
            budget_bytes: plan.budget_bytes,
            context: blueprint.context,
            kv_bytes: blueprint.kv_bytes(),
            mapped: plan.is_mapped,
            pinned_bytes: plan.pinned_bytes(),
            streamed_bytes_per_pass: plan.streamed_bytes(),
            experts_of: plan
                .expert_slots
                .as_ref()
                .map(|experts| (experts.slots, experts.layout.experts())),
        }
    }

    fn summary(&self) -> String {
        let size = in_binary_units;
        let weights = match (self.mapped, self.streamed_bytes_per_pass) {
            (true, _) => "all weights stay in memory, nothing is read per token".to_owned(),
            (false, 0) if self.experts_of.is_some() => {
                format!(
                    "all {} of weights except experts stay in memory",
                    size(self.pinned_bytes)
                )
            }
            (false, 0) => format!("all {} of weights stay in memory", size(self.pinned_bytes)),
            (false, streamed) => format!(
                "{} of weights stay in memory, {} are read for each token",
                size(self.pinned_bytes),
                size(streamed)
            ),
        };
        let experts = self.experts_of.map_or(String::new(), |(slots, all)| {
            if slots == all {
                return format!(", and each of {all} experts from its first use on");
            }
            format!(", and {slots} of {all} experts at a time")
        });
        format!(
            "in a budget of {}: {weights}{experts}; KV cache of {} for {} tokens",
            size(self.budget_bytes),
            size(self.kv_bytes),
            self.context
        )
    }
}

impl TokenizerInfo {
    fn read(metadata: &Metadata) -> Self {
        let tokens = metadata.strings("tokenizer.ggml.tokens").ok().flatten();
        let special = SPECIAL.iter().filter_map(|&job| {
            let key = format!("tokenizer.ggml.{job}_token_id");
            let id = metadata.u32(&key).ok().flatten()?;
            let token = tokens.and_then(|tokens| tokens.get(id as usize));
            Some(SpecialToken {
                job,
                id,
                text: String::from_utf8_lossy(token.unwrap_or_default()).into_owned(),
            })
        });
        Self {
            model: text(metadata, "tokenizer.ggml.model"),
            pre: text(metadata, "tokenizer.ggml.pre"),
            tokens: tokens.map_or(0, emel_loader::gguf::StringTable::len),
            special: special.collect(),
            warnings: Vec::new(),
        }
    }

    fn add_to(&self, lines: &mut Lines) {
        let model = or_none(self.model.as_ref());
        let pre = self.pre.as_ref();
        let pre = pre.map_or(String::new(), |pre| format!(", pre-tokenizer {pre}"));
        let tokens = self.tokens;
        lines.add("tokenizer", &format!("{model}{pre}, {tokens} tokens"));
        for SpecialToken { job, id, text } in &self.special {
            lines.add("", &format!("{job:<9} {id:>7}  {text}"));
        }
        for warning in &self.warnings {
            lines.add("", warning);
        }
    }
}

impl TemplateInfo {
    fn read(templates: &ChatTemplates) -> Option<Self> {
        let names = templates.names().to_owned();
        if names.is_empty() {
            return None;
        }
        let found = |has_tools| templates.source(has_tools);
        let shown = found(false).and_then(|plain| Ok((plain.is_none(), plain.or(found(true)?))));
        let (chatml_without_tools, source, problem) = match shown {
            Ok((is_chatml, source)) => (is_chatml, source.unwrap_or_default(), None),
            Err(error) => (false, "", Some(error.to_string())),
        };
        let mut start: String = source.chars().take(TEMPLATE_START).collect();
        if start.len() < source.len() {
            start.push('…');
        }
        Some(Self {
            names,
            bytes: source.len(),
            start,
            chatml_without_tools,
            problem,
        })
    }

    fn summary(&self) -> String {
        let mut text = self.names.join(", ");
        if self.bytes > 0 {
            text += &format!("; {} bytes", self.bytes);
        }
        if self.chatml_without_tools {
            text += "; without tools ChatML would be used";
        }
        text
    }
}

fn text(metadata: &Metadata, key: &str) -> Option<String> {
    match metadata.get(key)? {
        Value::String(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

fn elements(tensor: &emel_loader::gguf::Tensor) -> u64 {
    tensor.columns() * tensor.rows()
}

/// The types of the tensors, those with the most bytes first.
fn types(catalog: &Catalog) -> Vec<TypeShare> {
    let mut shares: Vec<TypeShare> = Vec::new();
    for tensor in catalog.tensors() {
        let name = tensor.tensor_type.name();
        let place = shares.iter().position(|share| share.name == name);
        let place = place.unwrap_or_else(|| {
            shares.push(TypeShare {
                name,
                supported: Format::from_ggml_type(tensor.tensor_type.id()).is_some(),
                tensors: 0,
                parameters: 0,
                bytes: 0,
            });
            shares.len() - 1
        });
        let share = &mut shares[place];
        share.tensors += 1;
        share.parameters += elements(tensor);
        share.bytes += tensor.extent.bytes;
    }
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

/// What the file has besides the model; nothing where that does not run.
fn unused(catalog: &Catalog) -> Vec<UnusedInfo> {
    let parts = arch::program(catalog).map_or(Vec::new(), |program| program.unused);
    let shown = |part: UnusedPart| UnusedInfo {
        name: part.name,
        purpose: part.purpose,
        tensors: part.tensors,
        bytes: part.bytes,
    };
    parts.into_iter().map(shown).collect()
}

/// What the file says about the model's shape; the keys that are there.
fn hyperparameters(
    metadata: &Metadata,
    architecture: &str,
) -> serde_json::Map<String, serde_json::Value> {
    let known = [
        ("context", "context_length"),
        ("layers", "block_count"),
        ("width", "embedding_length"),
        ("feed_forward", "feed_forward_length"),
        ("heads", "attention.head_count"),
        ("kv_heads", "attention.head_count_kv"),
        ("window", "attention.sliding_window"),
        ("experts", "expert_count"),
        ("experts_used", "expert_used_count"),
        ("shared_experts", "expert_shared_count"),
    ];
    let found = |(name, suffix): (&str, &str)| {
        let value = metadata.get(&format!("{architecture}.{suffix}"))?;
        Some((name.to_owned(), shown(value)?))
    };
    known.into_iter().filter_map(found).collect()
}

/// Keys under the prefix of a supported architecture by which nothing is computed.
fn unused_keys(catalog: &Catalog) -> Vec<String> {
    let found = catalog.metadata().str("general.architecture");
    let is_supported = |name: &&str| arch::supported().any(|known| known == *name);
    let architecture = found.ok().flatten().filter(is_supported);
    architecture.map_or_else(Vec::new, |name| Keys::new(catalog, name).unused())
}

/// A number, or the range of those that differ between layers.
fn shown(value: &Value) -> Option<serde_json::Value> {
    match value {
        Value::Unsigned(number) => Some((*number).into()),
        Value::Signed(number) => Some((*number).into()),
        Value::Float(number) => Some((*number).into()),
        Value::Array(Array::I32(numbers)) => {
            let (least, most) = (*numbers.iter().min()?, *numbers.iter().max()?);
            Some(if least == most {
                least.into()
            } else {
                format!("{least} to {most}, by layer").into()
            })
        }
        _ => None,
    }
}

fn in_millions(parameters: u64) -> String {
    match parameters {
        0..1_000_000 => parameters.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} M", parameters as f64 / 1e6),
        _ => format!("{:.2} B", parameters as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_spaces_and_nothing_is_lost() {
        let lines = |text, columns| wrapped(text, columns).collect::<Vec<_>>();
        assert_eq!(lines("", 5), [""]);
        assert_eq!(lines("one", 5), ["one"]);
        assert_eq!(lines("one two three", 7), ["one two", "three"]);
        assert_eq!(lines("one two three", 8), ["one two", "three"]);
        assert_eq!(lines("indivisible é", 5), ["indivisible", "é"]);
        assert_eq!(lines("éé éé éé", 5), ["éé éé", "éé"]);
    }
}
