//! The flags of llama.cpp's programs for the terminal, and what becomes of each: one table.
//!
//! Flags that emel has under the same name are not in it. The names and the number of their
//! values are those of llama.cpp's `common/arg.cpp`, with those of earlier versions that model
//! pages still give.

/// What becomes of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It is emel's option of this name.
    Named(&'static str),
    /// It is emel's option of this name with this value.
    Stands(&'static str, &'static str),
    /// It cannot change an answer: taken, and named in a note.
    WithoutEffect,
    /// It would change the answer, or what is done, and does not exist: refused with this advice.
    Refused(&'static str),
    /// Its value is the model's file.
    Model,
    /// Its value is a model to download.
    Download,
    /// Its value is the type of keys.
    KeyType,
    /// Its value is the type of values.
    ValueType,
}

/// The values that follow a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    None,
    One,
    Two,
    /// One of [`SWITCHES`], or none.
    Switch,
}

/// Flags that mean the same.
#[derive(Debug)]
pub(super) struct Row {
    names: &'static str,
    pub(super) values: Values,
    pub(super) meaning: Meaning,
}

/// What may follow a flag that is turned on and off.
pub(super) const SWITCHES: [&str; 11] = [
    "on", "off", "auto", "true", "false", "enabled", "disabled", "yes", "no", "1", "0",
];

const DOWNLOADS_NOTHING: Meaning =
    Meaning::Refused("emel downloads nothing; fetch the file and give its path");
const READS_TEXT: Meaning = Meaning::Refused("emel reads text only; leave it out");
const SERVER: Meaning = Meaning::Refused(
    "emel has no server yet; leave it out, and `emel run` answers in the terminal",
);
const PERPLEXITY: Meaning = Meaning::Refused("`emel eval` scores a text; see emel eval --help");
const TOKENS: Meaning = Meaning::Refused("`emel tokenize` shows the tokens of a text");
const EMBEDDING: Meaning = Meaning::Refused("emel makes no embeddings; leave it out");
const OTHER_PROGRAM: Meaning =
    Meaning::Refused("this is of another program of llama.cpp's; leave it out");
const ROPE: Meaning =
    Meaning::Refused("positions are rotated and scaled as the model's file says; leave it out");
const SESSION: Meaning =
    Meaning::Refused("--session FILE keeps what has been computed, of the prompt and the answer");
const ADAPTER: Meaning = Meaning::Refused(
    "emel applies no adapters; merge it into the model (llama-export-lora) and run that",
);
const CONTROL_VECTOR: Meaning = Meaning::Refused("emel applies no control vectors; leave it out");
const GRAMMAR: Meaning =
    Meaning::Refused("emel has no grammars; ask for the form in the prompt instead");
const MESSAGE_FORM: Meaning =
    Meaning::Refused("the chat template gives messages their form; --chat-template sets another");

const fn row(names: &'static str, values: Values, meaning: Meaning) -> Row {
    Row {
        names,
        values,
        meaning,
    }
}

/// All of them.
const ROWS: &[Row] = &[
    row("-m --model", Values::One, Meaning::Model),
    row("-ctk --cache-type-k", Values::One, Meaning::KeyType),
    row("-ctv --cache-type-v", Values::One, Meaning::ValueType),
    row(
        "-hf -hfr --hf-repo -mu --model-url",
        Values::One,
        Meaning::Download,
    ),
    // Emel's options by other names.
    row(
        "-cnv -i --interactive -if --interactive-first",
        Values::None,
        Meaning::Named("--conversation"),
    ),
    row("-no-cnv", Values::None, Meaning::Named("--no-conversation")),
    row("-sys", Values::One, Meaning::Named("--system-prompt")),
    row("-sysf", Values::One, Meaning::Named("--system-prompt-file")),
    row("-st", Values::None, Meaning::Named("--single-turn")),
    row("-co", Values::Switch, Meaning::Named("--color")),
    row("--usage", Values::None, Meaning::Named("--help")),
    row(
        "--context-shift",
        Values::None,
        Meaning::Stands("--context-full", "drop"),
    ),
    row(
        "--no-context-shift",
        Values::None,
        Meaning::Stands("--context-full", "stop"),
    ),
    // Where weights are, and how they get there.
    row(
        "-ngl --gpu-layers --n-gpu-layers -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn \
         -ot --override-tensor -sm --split-mode -ts --tensor-split -mg --main-gpu -dev --device \
         --rpc -lm --load-mode -lzm --lazy-mode -fitt --fit-target -fitc --fit-ctx",
        Values::One,
        Meaning::WithoutEffect,
    ),
    row(
        "-cmoe --cpu-moe --mlock --mmap -dio --direct-io -ndio --no-direct-io --check-tensors \
         --repack -nr --no-repack --no-host -kvo --kv-offload -nkvo --no-kv-offload \
         --op-offload --no-op-offload -nopo --warmup --no-warmup --offline",
        Values::None,
        Meaning::WithoutEffect,
    ),
    row("-fit --fit", Values::Switch, Meaning::WithoutEffect),
    // How the work is cut and shared.
    row(
        "-b --batch-size -ub --ubatch-size -tb --threads-batch -np --parallel -C --cpu-mask \
         -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch -Crb --cpu-range-batch \
         --cpu-strict-batch --prio --prio-batch --poll --poll-batch --numa -dt --defrag-thold \
         -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step \
         -cram --cache-ram --cache-reuse --kv-unified-per-slot",
        Values::One,
        Meaning::WithoutEffect,
    ),
    row(
        "-cb --cont-batching -nocb --no-cont-batching -kvu --kv-unified -no-kvu \
         --no-kv-unified --swa-full -bs --backend-sampling --cache-prompt --no-cache-prompt \
         --cache-idle-slots --no-cache-idle-slots",
        Values::None,
        Meaning::WithoutEffect,
    ),
    row("-fa --flash-attn", Values::Switch, Meaning::WithoutEffect),
    // What is shown.
    row(
        "-v --verbose --log-verbose --verbose-prompt --perf --no-perf --show-timings \
         --no-show-timings --display-prompt --no-display-prompt --simple-io --jinja \
         --no-skip-chat-parsing --log-disable --log-jsonl --no-log-jsonl --log-prefix \
         --no-log-prefix --log-timestamps --no-log-timestamps",
        Values::None,
        Meaning::WithoutEffect,
    ),
    row(
        "-lv --verbosity --log-verbosity --log-file --log-prompts-dir -ptc --print-token-count",
        Values::One,
        Meaning::WithoutEffect,
    ),
    row("--log-colors", Values::Switch, Meaning::WithoutEffect),
    // Drafts of a smaller model or of an n-gram make an answer faster, not another.
    row(
        "-md --model-draft --spec-draft-model -hfd -hfrd --hf-repo-draft --spec-draft-hf \
         -td --threads-draft --spec-draft-threads -tbd --threads-batch-draft \
         --spec-draft-threads-batch -Cd --cpu-mask-draft --spec-draft-cpu-mask \
         -Crd --cpu-range-draft --spec-draft-cpu-range --cpu-strict-draft \
         --spec-draft-cpu-strict --prio-draft --spec-draft-prio --poll-draft --spec-draft-poll \
         -Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch -Crbd --cpu-range-batch-draft \
         --spec-draft-cpu-range-batch --cpu-strict-batch-draft --spec-draft-cpu-strict-batch \
         --prio-batch-draft --spec-draft-prio-batch --poll-batch-draft --spec-draft-poll-batch \
         -ctkd --cache-type-k-draft --spec-draft-type-k -ctvd --cache-type-v-draft \
         --spec-draft-type-v -otd --override-tensor-draft --spec-draft-override-tensor \
         -ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -devd \
         --device-draft --spec-draft-device -ngld --gpu-layers-draft --n-gpu-layers-draft \
         --spec-draft-ngl -cd --ctx-size-draft --draft --draft-n --draft-max --draft-min \
         --draft-n-min --draft-p-min --draft-p-split --spec-draft-n-max --spec-draft-n-min \
         --spec-draft-p-split --spec-draft-p-min --spec-synth-len --spec-synth-rates --spec-type \
         --spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match \
         --spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits \
         --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits \
         --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits \
         -lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        Values::One,
        Meaning::WithoutEffect,
    ),
    row(
        "-cmoed --cpu-moe-draft --spec-draft-cpu-moe --spec-draft-backend-sampling \
         --no-spec-draft-backend-sampling --spec-default",
        Values::None,
        Meaning::WithoutEffect,
    ),
    // Pictures and sound; what would read them is of no matter to text.
    row("--image --audio --video", Values::One, READS_TEXT),
    row(
        "-mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device --image-min-tokens --image-max-tokens --video-fps \
         --video-timestamp-interval --video-ffmpeg-dir \
         --mtmd-batch-max-tokens",
        Values::One,
        Meaning::WithoutEffect,
    ),
    row(
        "--mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload",
        Values::None,
        Meaning::WithoutEffect,
    ),
    // Changes to the model.
    row("--lora --lora-scaled", Values::One, ADAPTER),
    row(
        "--control-vector --control-vector-scaled",
        Values::One,
        CONTROL_VECTOR,
    ),
    row("--control-vector-layer-range", Values::Two, CONTROL_VECTOR),
    row(
        "--override-kv",
        Values::One,
        Meaning::Refused(
            "hyperparameters are those of the model's file; change the file (gguf-set-metadata)",
        ),
    ),
    row(
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx \
         --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
        Values::One,
        ROPE,
    ),
    row(
        "-gan --grp-attn-n -gaw --grp-attn-w",
        Values::One,
        Meaning::Refused("emel does not extend a context by itself; leave it out, and lower -c"),
    ),
    // How tokens are drawn.
    row(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
        Values::One,
        GRAMMAR,
    ),
    row(
        "--adaptive-target --adaptive-decay",
        Values::One,
        Meaning::Refused("emel has no adaptive-p sampler; leave it out"),
    ),
    row(
        "--cfg-scale --cfg-negative-prompt --cfg-negative-prompt-file",
        Values::One,
        Meaning::Refused("emel has no classifier-free guidance; leave it out"),
    ),
    // What goes in and comes out.
    row("--in-prefix --in-suffix", Values::One, MESSAGE_FORM),
    row("--in-prefix-bos", Values::None, MESSAGE_FORM),
    row(
        "-ins --instruct -cml --chatml",
        Values::None,
        Meaning::Refused("-cnv holds a conversation, and --chat-template chatml sets that form"),
    ),
    row(
        "--no-jinja",
        Values::None,
        Meaning::Refused("chat templates are always rendered as Jinja; leave it out"),
    ),
    row(
        "--skip-chat-parsing",
        Values::None,
        Meaning::Refused("--reasoning-format none shows an answer as the model writes it"),
    ),
    row(
        "-rea --reasoning",
        Values::Switch,
        Meaning::Refused(
            "--reasoning-budget 0 turns thinking off; without it the template decides",
        ),
    ),
    row(
        "--reasoning-effort",
        Values::One,
        Meaning::Refused("--chat-template-kwargs '{\"reasoning_effort\": \"high\"}' sets it"),
    ),
    row(
        "--reasoning-budget-message",
        Values::One,
        Meaning::Refused("no text is added to the model's thoughts; leave it out"),
    ),
    row(
        "--reasoning-preserve --no-reasoning-preserve",
        Values::None,
        Meaning::Refused("the chat template decides which thoughts it keeps; leave it out"),
    ),
    row(
        "-mli --multiline-input",
        Values::None,
        Meaning::Refused("a line is a message; leave it out"),
    ),
    row(
        "-bf --binary-file",
        Values::One,
        Meaning::Refused("-f reads a text in UTF-8"),
    ),
    row(
        "-sp --special",
        Values::None,
        Meaning::Refused("special tokens are not printed; leave it out"),
    ),
    row(
        "-o --output --output-file",
        Values::One,
        Meaning::Refused("the answer goes to standard output; have the shell keep it: > FILE"),
    ),
    row(
        "--keep",
        Values::One,
        Meaning::Refused("what is kept when the context is full cannot be set; leave it out"),
    ),
    row("--prompt-cache", Values::One, SESSION),
    row(
        "--prompt-cache-all --prompt-cache-ro",
        Values::None,
        SESSION,
    ),
    row(
        "-dkvc --dump-kv-cache",
        Values::None,
        Meaning::Refused("the KV cache cannot be printed; leave it out"),
    ),
    // Other things than running a model.
    row(
        "-dr --docker-repo -hff --hf-file -hft --hf-token",
        Values::One,
        DOWNLOADS_NOTHING,
    ),
    row(
        "--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default \
         --vision-gemma-12b-default --embd-gemma-default --fim-qwen-1.5b-default \
         --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec \
         --fim-qwen-30b-default --mtp --dflash --eagle3",
        Values::None,
        DOWNLOADS_NOTHING,
    ),
    // Of llama-server.
    row(
        "--host --port --path --api-prefix --api-key --api-key-file --ssl-key-file \
         --ssl-cert-file -to --timeout --sse-ping-interval --threads-http --cors-origins \
         --cors-methods --cors-headers --ui-config --webui-config --ui-config-file \
         --webui-config-file --tools --tools-runtime --mcp-servers-config --mcp-servers-json \
         --slot-save-path -sps --slot-prompt-similarity --media-path --models-dir \
         --models-preset --models-max --sleep-idle-seconds -a --alias --tags",
        Values::One,
        SERVER,
    ),
    row(
        "--reuse-port --cors-credentials --no-cors-credentials --ui-mcp-proxy \
         --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy -ag --agent -no-ag --no-agent \
         --ui --webui --no-ui --no-webui --metrics --props --slots --no-slots \
         --models-autoload --no-models-autoload --prefill-assistant --no-prefill-assistant \
         --lora-init-without-apply --spm-infill",
        Values::None,
        SERVER,
    ),
    // Of the other programs.
    row(
        "--ppl-stride --ppl-output-type --hellaswag-tasks --winogrande-tasks \
         --multiple-choice-tasks --save-all-logits --kl-divergence-base --chunks",
        Values::One,
        PERPLEXITY,
    ),
    row(
        "--hellaswag --winogrande --multiple-choice --kl-divergence --ppl --no-ppl",
        Values::None,
        PERPLEXITY,
    ),
    row(
        "--ids --stdin --no-bos --no-parse-special --parse-special --show-count",
        Values::None,
        TOKENS,
    ),
    row(
        "--pooling --attention --embd-normalize --embd-output-format --embd-separator \
         --cls-separator",
        Values::One,
        EMBEDDING,
    ),
    row(
        "--embedding --embeddings --rerank --reranking",
        Values::None,
        EMBEDDING,
    ),
    row(
        "--in-file --context-file --chunk-size --chunk-separator --junk --pos -ns --sequences \
         -ofreq --output-frequency --output-format --save-frequency --chunk --from-chunk -npp \
         -ntg -npl --positive-file --negative-file --pca-batch --pca-iter --method --tts-lang \
         --tts-speaker-file --diffusion-steps --diffusion-eps --diffusion-algorithm \
         --diffusion-alg-temp --diffusion-block-length --diffusion-cfg-scale \
         --diffusion-add-gumbel-noise -lr --learning-rate -lr-min --learning-rate-min \
         -decay-epochs --learning-rate-decay-epochs -wd --weight-decay -val-split --val-split \
         -epochs --epochs -opt --optimizer --logits-output-dir --tensor-filter",
        Values::One,
        OTHER_PROGRAM,
    ),
    row(
        "--process-output --show-statistics -pps -tgs --diffusion-visual --check --save-logits",
        Values::None,
        OTHER_PROGRAM,
    ),
    row(
        "-cl --cache-list",
        Values::None,
        Meaning::Refused("emel keeps no models; give a file's path"),
    ),
    row(
        "--version",
        Values::None,
        Meaning::Refused("`emel --version` prints it"),
    ),
    row(
        "--list-devices",
        Values::None,
        Meaning::Refused("emel computes on the processor, which `emel doctor` describes"),
    ),
    row(
        "-fitp --fit-print",
        Values::Switch,
        Meaning::Refused("`emel plan` prints where the memory goes"),
    ),
    row(
        "--completion-bash",
        Values::None,
        Meaning::Refused("emel prints no completions for the shell; leave it out"),
    ),
    row(
        "--server-base",
        Values::One,
        Meaning::Refused("emel runs the model itself; leave it out"),
    ),
];

/// What becomes of the flag of this name.
pub(super) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter()
        .find(|row| row.names.split_whitespace().any(|known| known == name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_is_in_one_row() {
        let mut seen = BTreeSet::new();
        for name in ROWS.iter().flat_map(|row| row.names.split_whitespace()) {
            assert!(name.starts_with('-') && seen.insert(name), "{name}");
        }
    }
}
