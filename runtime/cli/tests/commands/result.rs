//! What comes out where the input is right.

use std::fs;
use std::io::{Read, Write};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use emel_tests::fixtures::fixture;
use emel_tests::gguf_writer::Field;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::model::Model;
use crate::{answering, command, emel, emel_run, gemma, llama, refusal, result, words};
use emel_tests::signals;

#[track_caller]
fn json(output: Output) -> Value {
    serde_json::from_str(&result(output)).unwrap()
}

#[test]
fn standard_output_holds_the_text_and_a_newline() {
    let output = emel_run(&llama(), words("-p hello -n 8 --temp 0 --stats"));
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "prompt:  4 tokens",
        "answer:  8 tokens",
        "memory:  budget 64.0 MiB",
    ] {
        assert!(notes.contains(part), "no `{part}` in: {notes}");
    }
    let text = result(output);
    assert!(text.ends_with('\n') && !text.contains("tokens/s"), "{text}");
    let quiet = emel_run(&llama(), words("-p hello -n 8 --temp 0"));
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
    assert_eq!(result(quiet), text);
}

#[test]
fn statistics_are_complete_and_consistent() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics.json");
    fs::write(&path, "something longer than the statistics\n".repeat(1000)).unwrap();
    for io in ["mmap", "pread"] {
        let arguments = words("-p hello -n 8 --temp 0 --ignore-eos -t 2 --stats-json");
        let arguments = arguments.chain([path.to_str().unwrap(), "--io", io]);
        result(emel_run(&llama(), arguments));
        let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for key in [
            "prefill_tokens_per_second",
            "decode_tokens_per_second",
            "first_token_ms",
            "decode_bytes_per_second",
        ] {
            assert!(found[key].is_f64(), "{key} in {found}");
        }
        for spent in [&found, &found["decode"]] {
            let part = |key: &str| spent[key].as_f64().unwrap();
            let parts = ["wait_ms", "compute_ms", "sampling_ms", "other_ms"].map(part);
            assert!(parts.iter().all(|&part| part >= 0.0), "{found}");
            // Each was rounded.
            let difference = parts.iter().sum::<f64>() - part("total_ms");
            assert!(difference.abs() < 1e-3, "{difference} in {found}");
            assert!(part("compute_ms") > 0.0 && part("sampling_ms") > 0.0);
        }
        for key in [
            "bytes_read",
            "retries",
            "streamed_bytes_per_token",
            "pinned_bytes",
            "given_back_bytes",
            "ring_bytes",
            "kv_bytes",
            "peak_memory_bytes",
            "major_faults",
        ] {
            assert!(found[key].is_u64(), "{key} in {found}");
        }
        assert_eq!(found["prompt_tokens"], 4);
        assert_eq!(found["generated_tokens"], 8);
        assert_eq!(found["threads"], 2);
        assert_eq!(found["io_backend"], io);
        assert!(found["direct_io"].is_boolean());
        assert!(found["peak_memory_bytes"].as_u64() <= found["budget_bytes"].as_u64());
    }
}

#[test]
fn tokenize_prints_ids() {
    let found = json(emel("tokenize", &llama(), ["-p", "hello", "--json"]));
    assert_eq!(found, serde_json::json!({"ids": [255, 92, 92, 95]}));
    let lines = result(emel("tokenize", &llama(), ["-p", "hello"]));
    assert_eq!(lines.lines().count(), 4);
    assert!(lines.starts_with("     255  \"he\"\n"), "{lines}");
    let found = json(emel("tokenize", &llama(), ["-p", "", "--json"]));
    assert_eq!(found, serde_json::json!({"ids": []}));
    let folder = TempDir::new().unwrap();
    let with_bos = Model::llama().with("tokenizer.ggml.add_bos_token", Field::Bool(true));
    let found = json(emel(
        "tokenize",
        &with_bos.write(&folder),
        ["-p", "", "--json"],
    ));
    assert_eq!(found, serde_json::json!({"ids": [1]}));
}

#[test]
fn eval_prints_ids_scores_and_the_most_probable_tokens() {
    let arguments = words("--tokens 1,2,3 --top 2 --json --ram-budget 64M");
    let found = json(emel("eval", &llama(), arguments));
    assert_eq!(found["ids"], serde_json::json!([1, 2, 3]));
    assert!(found["mean_nll"].as_f64().unwrap() > 0.0);
    let top = found["top"].as_array().unwrap();
    assert_eq!(top.len(), 3, "one for each position");
    for row in top {
        assert_eq!(row.as_array().unwrap().len(), 2);
        assert!(row[0][0].is_u64() && row[0][1].as_f64() >= row[1][1].as_f64());
    }
    let arguments = words("--tokens 1 --top 100000 --json --ram-budget 64M");
    let found = json(emel("eval", &llama(), arguments));
    assert_eq!(
        found["top"][0].as_array().unwrap().len(),
        384,
        "all there are"
    );
    let total: f64 = found["top"][0]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| pair[1].as_f64().unwrap().exp())
        .sum();
    assert!((total - 1.0).abs() < 1e-4, "{total}");
}

#[test]
fn eval_scores_a_text_as_it_scores_its_tokens() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, "hello").unwrap();
    let budget = ["--json", "--ram-budget", "64M"];
    let text = ["-f", path.to_str().unwrap()].into_iter().chain(budget);
    let option = ["-p", "hello"].into_iter().chain(budget);
    let tokens = ["--tokens", "255,92,92,95"].into_iter().chain(budget);
    let expected = json(emel("eval", &llama(), tokens));
    assert_eq!(json(emel("eval", &llama(), text)), expected);
    assert_eq!(json(emel("eval", &llama(), option)), expected);
    let single = json(emel("eval", &llama(), ["--tokens", "5", "--json"]));
    assert!(single["mean_nll"].is_null(), "{single}");
    let text = result(emel("eval", &llama(), ["--tokens", "5"]));
    assert!(
        text.contains("1 token,") && !text.contains("perplexity"),
        "{text}"
    );
    let text = result(emel("eval", &llama(), ["-p", "hello"]));
    assert!(text.contains("4 tokens, 3 scored: mean"), "{text}");
}

#[test]
fn logits_are_a_numpy_file_of_the_same_bytes_however_they_are_computed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("logits.npy");
    let logits = |model: &std::path::Path, options: &str| {
        let arguments = words("--tokens 3,1,4,1,5,9,2,6 --logits");
        let arguments = arguments.chain([path.to_str().unwrap()]);
        result(emel("eval", model, arguments.chain(words(options))));
        fs::read(&path).unwrap()
    };
    for (model, vocabulary) in [(llama(), 384), (gemma(), 0)] {
        let first = logits(&model, "--io mmap -t 1 --ram-budget 64M");
        assert_eq!(first[..8], *b"\x93NUMPY\x01\x00");
        let header_bytes = usize::from(u16::from_le_bytes([first[8], first[9]]));
        let header = std::str::from_utf8(&first[10..10 + header_bytes]).unwrap();
        assert_eq!((10 + header_bytes) % 64, 0);
        assert!(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (8, "));
        assert!(header.ends_with('\n'));
        let floats = (first.len() - 10 - header_bytes) / 4;
        assert!(
            vocabulary == 0 || floats == 8 * vocabulary,
            "{floats} logits"
        );
        assert!(header.contains(&format!("(8, {})", floats / 8)), "{header}");

        let smallest = emel(
            "plan",
            &model,
            words("-c 8 --io pread -no-cnv --ram-budget 1M"),
        );
        let message = String::from_utf8(smallest.stderr).unwrap();
        let (_, rest) = message.split_once("smallest that works is ").unwrap();
        let (smallest, _) = rest.split_once(';').unwrap();
        for budget in [smallest, "13M", "64M"] {
            for io in ["pread", "mmap", "uring", "ring"] {
                for threads in [1, 2] {
                    let options = format!("--io {io} -t {threads} --ram-budget {budget}");
                    let refused_uring = io.ends_with("ring") && !has_uring();
                    if !refused_uring {
                        assert!(logits(&model, &options) == first, "{options}");
                    }
                }
            }
        }
    }
}

/// Whether this system lets us use io_uring; containers often do not.
fn has_uring() -> bool {
    let output = emel_run(&llama(), words("-p hello -n 1 --io uring"));
    let has = output.status.success();
    if !has {
        eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
    }
    has
}

#[test]
fn a_plan_in_json_adds_up() {
    for options in [
        "--ram-budget 64M",
        "--ram-budget 13M --io pread -no-cnv",
        "-c 64 --ram-budget 50%",
    ] {
        let output = emel("plan", &llama(), words(options).chain(["--json"]));
        if options.ends_with('%') {
            // Half of a file this small is no budget for a process.
            crate::refusal(output, 1, &["a RAM budget of less than 0.1M is too small"]);
            continue;
        }
        let plan = json(output);
        let items = plan["items"].as_array().unwrap();
        let sum: u64 = items
            .iter()
            .map(|item| item["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(plan["planned_bytes"], sum, "{plan}");
        assert!(plan["planned_bytes"].as_u64() <= plan["budget_bytes"].as_u64());
        assert_eq!(plan["file_bytes"], fs::metadata(llama()).unwrap().len());
        let text = result(emel("plan", &llama(), words(options)));
        assert!(
            text.starts_with("budget ") && text.contains("\nplanned "),
            "{text}"
        );
    }
}

#[test]
fn a_seed_repeats_a_text_and_no_seed_does_not() {
    // So hot that two seeds cannot choose the same 40 tokens by chance.
    let options = "-p hello -n 40 --temp 5 --top-k 0 --top-p 1 --min-p 0 --ignore-eos";
    let arguments = |seed| words(options).chain(words(seed));
    let text = |seed| emel_run(&llama(), arguments(seed)).stdout;
    assert_eq!(text("--seed 7"), text("--seed 7"));
    assert_ne!(text("--seed 7"), text("--seed 8"));
    assert_ne!(text(""), text(""));
}

#[test]
fn the_seed_in_the_statistics_repeats_a_text() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics.json");
    let arguments = |options: &str| {
        let arguments = words("-p hello -n 40 --temp 1.5").chain(words(options));
        arguments.map(str::to_owned).collect::<Vec<String>>()
    };
    let options = format!("--stats --stats-json {}", path.display());
    let first = emel_run(&llama(), arguments(&options));
    let statistics: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let seed = statistics["seed"].as_u64().unwrap();
    let stderr = String::from_utf8(first.stderr).unwrap();
    assert!(stderr.contains(&format!("seed {seed}\n")), "{stderr}");
    let again = emel_run(&llama(), arguments(&format!("--seed {seed}")));
    assert_eq!(first.stdout, again.stdout);
}

#[test]
fn samplers_of_all_kinds_draw_a_text() {
    for options in [
        "--typical 0.9 --top-nsigma 2 --xtc-probability 0.5 --xtc-threshold 0.01",
        "--dry-multiplier 0.8 --dry-sequence-breaker none --repeat-last-n -1",
        "--dry-multiplier 0.8 --dry-sequence-breaker . --dry-sequence-breaker \\n\\n",
        "--presence-penalty 0.5 --frequency-penalty 0.5 --repeat-penalty 1.2",
        "--dynatemp-range 0.5 --dynatemp-exp 2 --min-keep 3 --top-k 0",
        "--mirostat 2 --mirostat-ent 3 --mirostat-lr 0.2",
        "--samplers top_k;temperature --logit-bias 5-inf -l 6+2",
        "--sampling-seq tpk --seed -1",
    ] {
        let arguments = words("-p hello -n 20 --ignore-eos --stats").chain(words(options));
        let output = emel_run(&llama(), arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{options}: {stderr}");
        assert!(stderr.contains("answer:  20 tokens"), "{options}: {stderr}");
    }
}

#[test]
fn a_biased_token_is_always_or_never_drawn() {
    let text = |bias: &str| {
        let arguments = words("-p hello -n 8 --temp 0 --ignore-eos -l").chain([bias]);
        result(emel_run(&llama(), arguments))
    };
    let always = text("70+1000");
    assert!(!always.trim().is_empty());
    assert_ne!(always, text("70-inf"));
    let output = emel_run(&llama(), words("-p hello -l 99999999+1"));
    let expected = [
        "--logit-bias (-l) is 99999999+1",
        "below the vocabulary's 384",
    ];
    refusal(output, 2, &expected);
}

#[test]
fn a_prompt_may_come_from_a_file_or_standard_input_and_begin_with_a_dash() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("prompt");
    fs::write(&path, "-hello").unwrap();
    let rest = || words("-n 8 --temp 0");
    let text = result(emel_run(
        &llama(),
        ["-p", "-hello"].into_iter().chain(rest()),
    ));
    let file = ["-f", path.to_str().unwrap()].into_iter().chain(rest());
    assert_eq!(result(emel_run(&llama(), file)), text);
    let mut child = command("emel-run")
        .arg(llama())
        .args(words("--ram-budget 64M -f -").chain(rest()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"-hello").unwrap();
    assert_eq!(result(child.wait_with_output().unwrap()), text);
}

#[test]
fn llama_cpps_spellings_mean_the_same() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics.json");
    let run = |options: &str| {
        let mut run = command("emel-run");
        run.args(words(
            "-p hello -s 7 --ignore-eos --ram-budget 64M --stats-json",
        ));
        run.arg(&path).args(words(options));
        let text = result(run.arg("-m").arg(llama()).output().unwrap());
        let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        (text, found)
    };
    let (text, found) = run("-n 8 -c 64 -t 1 -ngl 0");
    let (same_text, same) = run("--n-predict 8 -c 64 -t 1 --no-mmap");
    assert_eq!(text, same_text);
    assert_eq!(found["io_backend"], "mmap");
    assert_ne!(same["io_backend"], "mmap");
    let (_, wide) = run("-n 8 -c 64 -ctk f32 -ctv f32");
    assert_eq!(
        wide["kv_bytes"].as_u64().unwrap(),
        2 * found["kv_bytes"].as_u64().unwrap()
    );
    let model = llama().display().to_string();
    let output = command("emel")
        .args(["tokenize", "--model", &model, "-p", "hello"])
        .output();
    assert_eq!(result(output.unwrap()).lines().count(), 4);
}

#[test]
fn statistics_in_the_file_of_an_own_output_replace_nothing_of_it() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("out");
    for (option, file) in [
        ("--stats-json", "/dev/stdout"),
        ("--stats-json", path.to_str().unwrap()),
        ("--profile", "/dev/stdout"),
    ] {
        let mut run = command("emel-run");
        run.arg(llama()).args(words("-p hello -n 8 --temp 0"));
        let answer = result(run.output().unwrap());
        run.args([option, file]);
        let status = run.stdout(fs::File::create(&path).unwrap()).status();
        assert!(status.unwrap().success());
        let out = fs::read_to_string(&path).unwrap();
        let json = out.strip_prefix(&answer).expect("the answer comes first");
        assert!(serde_json::from_str::<Value>(json).unwrap().is_object());
    }
}

#[test]
fn what_was_read_adds_up_with_loading() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics.json");
    let mut run = command("emel-run");
    run.arg(fixture("arch/llama-untied.gguf")).args(words(
        "-p hello -n 6 --temp 0 --ignore-eos --io pread --ram-budget 64M --stats --stats-json",
    ));
    let output = run.arg(&path).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let number = |name: &str| found[name].as_u64().unwrap();
    // All of it is pinned when it is loaded, and rows of the embedding are read for tokens.
    let before = number("bytes_read_since_open") - number("bytes_read");
    assert!(number("bytes_read") > 0, "{found}");
    assert!(before > 0 && before <= number("pinned_bytes"), "{found}");
    for part in [
        " for prompt and answer,",
        " since the start,",
        "  other\n",
        "\n  decode",
    ] {
        assert!(stderr.contains(part), "no `{part}` in: {stderr}");
    }
}

#[test]
fn the_number_of_tokens_is_honoured() {
    assert_eq!(result(emel_run(&llama(), words("-p hello -n 0"))), "\n");
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("statistics.json");
    let generated = |options: &str| {
        let arguments = words("-p hello --temp 0 --ignore-eos --stats-json");
        let arguments = arguments.chain([path.to_str().unwrap()]);
        result(emel_run(&llama(), arguments.chain(words(options))));
        let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        found["generated_tokens"].as_u64().unwrap()
    };
    assert_eq!(generated("-n 0"), 0);
    assert_eq!(generated("-n 5"), 5);
    assert_eq!(generated(""), 128);
    // All 64 positions, and the token that follows the last.
    assert_eq!(generated("-n -1 -c 64"), 64 - 4 + 1);
    assert_eq!(generated("-n 1000 -c 64"), 64 - 4 + 1);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let leaving = |mut command: std::process::Command| {
        let (child, output) = answering(command.stderr(Stdio::piped()));
        drop(output);
        let output = child.wait_with_output().unwrap();
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{notes}");
        assert!(
            !notes.contains("error") && !notes.contains("panicked"),
            "{notes}"
        );
    };
    let mut run = command("emel-run");
    run.arg(gemma()).args(words(
        "-p hello -n -1 -c 20000 --ignore-eos --ram-budget 256M",
    ));
    leaving(run);
    for arguments in ["--json", ""] {
        let mut eval = command("emel");
        eval.arg("eval")
            .arg(llama())
            .args(["--top", "384", "--tokens"]);
        eval.arg(vec!["1"; 200].join(",")).args(words(arguments));
        leaving(eval);
    }
}

#[test]
fn nobody_listening_on_standard_error_is_no_panic() {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    drop(reader);
    let mut run = command("emel-run");
    run.arg(llama()).args(words("-p hello -n 2 --stats -c 600"));
    run.stdout(Stdio::null());
    assert_eq!(run.stderr(writer).status().unwrap().code(), Some(0));
}

#[test]
fn an_interrupt_ends_a_run_at_once() {
    signals::undo_ignored();
    let mut run = command("emel-run");
    run.arg(gemma()).args(words(
        "-p hello -n -1 -c 100000 --ignore-eos --ram-budget 1G",
    ));
    let (mut child, mut output) = answering(run.stderr(Stdio::null()));
    let interrupted = Instant::now();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "{status}");
    // Far less than the tokens that were left would take, even on a busy machine.
    assert!(interrupted.elapsed() < Duration::from_secs(60));
}

#[test]
fn help_and_version_go_to_standard_output() {
    for name in ["emel-run", "emel"] {
        let commands = [
            "info", "plan", "doctor", "tokenize", "render", "eval", "trace", "replay",
        ];
        for subcommand in commands.iter().filter(|_| name == "emel") {
            let help = command(name).args([subcommand, "--help"]).output();
            let help = result(help.unwrap());
            assert!(
                help.contains(&format!("Usage: emel {subcommand} ")),
                "{help}"
            );
            // Whatever runs on a model takes llama.cpp's way to name it, too.
            let offers = help.contains("[also: -m FILE]");
            assert_eq!(offers, help.contains("<MODEL>"), "{help}");
        }
        let version = result(command(name).arg("--version").output().unwrap());
        assert_eq!(version, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
        let help = result(command(name).arg("--help").output().unwrap());
        assert!(help.contains("Usage: "), "{help}");
    }
    // What auto is to a run that may map the model is not what it is here.
    let help = result(command("emel").args(["doctor", "--help"]).output().unwrap());
    assert!(!help.contains("if the model fits"), "{help}");
    let help = command("emel").output().unwrap();
    assert_eq!(help.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&help.stderr).contains("Usage: "));
}
