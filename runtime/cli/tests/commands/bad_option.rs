//! Options that make no sense, or that this model and this budget cannot satisfy.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use emel_tests::gguf_writer::Field;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, emel_run, gemma, llama, refusal, result, words};

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    for (arguments, expected) in [
        (
            "",
            "standard input is empty, expected a text; give one with -p TEXT or -f FILE",
        ),
        ("-p a -f b", "cannot be used with"),
        ("-p a -n -3", "-3 is not in"),
        ("-p a -n many", "'many'"),
        ("-p a -n", "a value is required"),
        (
            "-p a --io floppy",
            "possible values: auto, ring, uring, pread, mmap",
        ),
        ("-p a --kv f64", "possible values: f16, f32"),
        ("-p a --promt b", "--promt: no such option; --prompt is one"),
        ("-p a --seed -2", "--seed"),
        ("-p a --seed x", "--seed"),
        ("-p a --temp hot", "--temp"),
        ("-p a -c -1", "--ctx-size"),
        ("-p a --repeat-last-n -2", "--repeat-last-n"),
        ("-p a --dry-penalty-last-n -2", "--dry-penalty-last-n"),
        ("-p a --mirostat 1", "--mirostat is 1, expected 0 or 2"),
        (
            "-p a --mirostat 2 --mirostat-lr nan",
            "--mirostat-lr is NaN",
        ),
        ("-p a --logit-bias 5", "a token id, a sign and a number"),
        ("-p a --samplers top_k;top_q", "top_q is no sampler"),
        ("-p a --sampling-seq kz", "z is no sampler"),
        ("-p a --sampling-seq k --samplers top_k", "cannot be used"),
        ("-p a -c 268435457", "-c is 268435457, expected 0 to"),
        ("-p a -t 100000", "-t is 100000, expected 1 to 1024 threads"),
        (
            "-p a another.gguf",
            "'another.gguf' is one argument too many; emel takes one model",
        ),
        (
            "-p a -m another.gguf",
            "'another.gguf' is one argument too many; emel takes one model",
        ),
        (
            "hello",
            "'hello' is one argument too many; emel takes one model; give a text as -p",
        ),
        (
            "-cnv --chat-template llama3",
            "--chat-template is llama3, one of the templates inside llama.cpp",
        ),
        (
            "-cnv --chat-template no-such",
            "--chat-template is no-such, which is no file here, expected a file,",
        ),
        ("-p a --no-mmap --io mmap", "cannot be used with"),
    ] {
        let message = refusal(emel_run(&llama(), words(arguments)), 2, &[expected]);
        assert!(!message.contains("Usage"), "{message}");
    }
    refusal(emel("eval", &llama(), words("")), 2, &["--tokens <IDS>"]);
    refusal(
        emel("tokenize", &llama(), words("")),
        2,
        &["--prompt <TEXT>"],
    );
    refusal(emel("explain", &llama(), words("")), 2, &["'explain'"]);
}

#[test]
fn a_line_without_a_model_or_a_command_says_what_to_type() {
    let model = llama();
    let model = model.to_str().unwrap();
    for (line, expected) in [
        (vec!["run"], "as `emel run MODEL.gguf`"),
        (vec!["run", "-p", "a"], "no model is given"),
        (vec!["plan"], "as `emel plan MODEL.gguf`"),
        (
            vec!["trace", model],
            "missing: --file <TEXTFILE>, --output <TRACE>; the form is `emel trace",
        ),
        (vec!["x.gguf"], "`emel run x.gguf` runs a model"),
        (vec![model], "llama.gguf` runs a model"),
        (vec!["org/name:Q4_K_M"], "`emel run org/name:Q4_K_M`"),
        (vec!["-m", model], "as `emel run -m …`"),
        (vec!["serve"], "emel has no server yet"),
        (vec!["pull", "a"], "emel downloads nothing"),
        (vec!["chat"], "`emel run MODEL.gguf` holds a conversation"),
    ] {
        let output = command("emel").args(line).output().unwrap();
        refusal(output, 2, &[expected]);
    }
    let output = command("emel-run").output().unwrap();
    refusal(output, 2, &["as `emel-run MODEL.gguf`"]);
    for (model, expected) in [
        ("smollm2", "give the path of a GGUF file"),
        ("https://a.org/x.gguf", "curl -LO https://a.org/x.gguf"),
        ("hf.co/a/b:Q4_K_M", "hf download a/b --include"),
    ] {
        let output = command("emel").args(["run", model]).output().unwrap();
        refusal(output, 1, &[model, expected]);
    }
}

#[test]
fn samplers_that_make_no_sense_are_named_as_the_command_spells_them() {
    for (option, value, expected) in [
        ("--temp", "nan", "is NaN, expected a finite number"),
        ("--temp", "inf", "is inf, expected a finite number"),
        ("--top-p", "1.5", "is 1.5, expected 0 to 1"),
        ("--top-p", "-0.5", "is -0.5, expected 0 to 1"),
        ("--min-p", "2", "is 2, expected 0 to 1"),
        ("--min-p", "nan", "is NaN, expected 0 to 1"),
        ("--typical", "2", "is 2, expected 0 to 1"),
        ("--top-nsigma", "nan", "is NaN, expected a finite number"),
        ("--xtc-probability", "-1", "is -1, expected 0 to 1"),
        ("--xtc-threshold", "1.5", "is 1.5, expected 0 to 1"),
        ("--dry-base", "-1", "is -1, expected a finite number from 0"),
        ("--dynatemp-range", "-1", "expected a finite number from 0"),
        ("--presence-penalty", "inf", "expected a finite number"),
        (
            "--repeat-penalty",
            "0",
            "is 0, expected a finite number above 0",
        ),
        (
            "--repeat-penalty",
            "-1",
            "is -1, expected a finite number above 0",
        ),
    ] {
        let output = emel_run(&llama(), ["-p", "a", option, value]);
        refusal(output, 2, &[option, expected]);
    }
}

#[test]
fn budgets_that_are_no_size_are_refused() {
    for size in [
        "", "lots", "8X", "0", "-1G", "0%", "nan%", "1e400", "inf", "64 X",
    ] {
        let option = format!("--ram-budget={size}");
        let output = emel("plan", &llama(), [option]);
        refusal(output, 2, &["--ram-budget", "is not a memory size", "512M"]);
    }
    for (size, meant) in [("8", "8G"), ("512", "512M")] {
        let output = emel_run(&llama(), ["-p", "a", "--ram-budget", size]);
        refusal(
            output,
            2,
            &["--ram-budget", &format!("did you mean {meant}?")],
        );
    }
}

/// The number of MiB that a refusal names as the smallest budget.
#[track_caller]
fn smallest_budget(message: &str) -> u64 {
    let (_, rest) = message.split_once("the smallest that works is ").unwrap();
    let (number, _) = rest.split_once('M').unwrap();
    number.parse().unwrap()
}

#[test]
fn the_smallest_budget_named_works_and_a_mebibyte_less_does_not() {
    for model in [llama(), gemma()] {
        for options in [
            "",
            "-c 100",
            "-c 20000",
            "--io pread",
            "--io mmap",
            "--kv f32 -c 9000",
        ] {
            let run = |budget: String| {
                let mut command = command("emel-run");
                command
                    .arg(&model)
                    .args(words("-p hello -n 2 --ram-budget"));
                command.arg(budget).args(words(options)).output().unwrap()
            };
            // No context would do.
            let advice = "raise the budget or choose a smaller model (--ram-budget)";
            let expected = ["arch/", "a RAM budget of 1M is too small", advice];
            let smallest = smallest_budget(&refusal(run("1M".to_owned()), 1, &expected));
            result(run(format!("{smallest}M")));
            let less = refusal(run(format!("{}M", smallest - 1)), 1, &["too small"]);
            assert_eq!(smallest_budget(&less), smallest, "{less}");
        }
        let evaluate = |budget: String| {
            let arguments = words("--tokens 1,2,3,4 --ram-budget");
            emel("eval", &model, arguments.chain([budget.as_str()]))
        };
        let message = refusal(evaluate("1M".to_owned()), 1, &["too small"]);
        let smallest = smallest_budget(&message);
        result(evaluate(format!("{smallest}M")));
        refusal(evaluate(format!("{}M", smallest - 1)), 1, &[]);
    }
}

#[test]
fn a_budget_just_too_small_is_not_rounded_up_to_the_one_that_works() {
    let refused = |budget: &str| {
        let output = emel("plan", &llama(), ["-c", "512", "--ram-budget", budget]);
        refusal(output, 1, &["too small"])
    };
    // The exact need lies in the last MiB below.
    let less = smallest_budget(&refused("1M")) - 1;
    let budget = (less << 20).to_string();
    assert!(refused(&budget).contains(&format!("of {less}M is too small")));
}

#[test]
fn a_context_beyond_the_budget_is_refused() {
    let output = emel_run(&llama(), words("-p hello -c 1000000"));
    let expected = [
        "llama.gguf",
        "64M is too small",
        "1000000 tokens",
        "raise the budget or lower the context (--ram-budget, -c)",
    ];
    refusal(output, 1, &expected);
}

#[test]
fn a_plan_that_the_machine_cannot_hold_is_refused() {
    let mut run = command("emel-run");
    run.arg(llama()).args(words(
        "-p hello -n 1 -c 268435456 -t 1024 --kv f32 --ram-budget 9000T",
    ));
    let expected = [
        "llama.gguf",
        "the plan takes",
        "lower the context or the budget (-c, --ram-budget)",
    ];
    let always = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    if always.is_ok_and(|mode| mode.trim() == "1") {
        eprintln!("skipped: this system promises any amount of memory");
        return;
    }
    refusal(run.output().unwrap(), 1, &expected);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused() {
    let output = emel_run(&llama(), words("-p hello -c 2"));
    refusal(
        output,
        1,
        &[
            "the prompt has 4 tokens",
            "holds 2",
            "raise the context (-c)",
        ],
    );
    result(emel_run(&llama(), words("-p hello -c 4 -n -1")));
}

#[test]
fn a_prompt_that_no_tokens_could_hold_is_refused_untokenised() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("prompt.txt");
    std::fs::write(&path, "a".repeat(60 << 20)).unwrap();
    let arguments = ["-f", path.to_str().unwrap(), "-c", "200"];
    let expected = [
        " bytes of text",
        "200 tokens",
        "shorten it or raise the context (-c)",
    ];
    refusal(emel_run(&llama(), arguments), 1, &expected);
}

#[test]
fn an_empty_prompt_works_only_where_the_model_begins_texts_itself() {
    refusal(
        emel_run(&llama(), ["-p", ""]),
        1,
        &["no tokens", "give some text"],
    );
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("tokenizer.ggml.add_bos_token", Field::Bool(true));
    result(emel_run(&model.write(&folder), ["-p", "", "-n", "2"]));
    let output = emel("eval", &llama(), ["-f", "-"]);
    refusal(output, 1, &["no tokens"]);
}

#[test]
fn texts_that_cannot_be_read_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("prompt.txt");
    let name = path.to_str().unwrap();
    let refused = |expected: &[&str]| {
        refusal(emel_run(&llama(), ["-f", name, "-c", "50"]), 1, expected);
        refusal(emel("tokenize", &llama(), ["-f", name]), 1, expected);
        refusal(emel("eval", &llama(), ["-f", name]), 1, expected);
    };
    refused(&["prompt.txt", "No such file", "check the path"]);
    fs::write(&path, b"fine so far\xff\xfe").unwrap();
    refused(&["prompt.txt", "byte 11 is not UTF-8", "convert"]);
    // As if a model had been passed by mistake: it is not read to its end.
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let expected = ["prompt.txt", "over 64.0 MiB of text"];
    refusal(emel("tokenize", &llama(), ["-f", name]), 1, &expected);
    let expected = ["prompt.txt", "at most fit the context of 50 tokens", "(-c)"];
    refusal(emel_run(&llama(), ["-f", name, "-c", "50"]), 1, &expected);
    let expected = [
        "prompt.txt",
        "RAM budget of 32.0 MiB",
        "raise the budget (--ram-budget)",
    ];
    let arguments = ["-f", name, "--ram-budget", "32M"];
    refusal(emel("eval", &llama(), arguments), 1, &expected);
    let output = emel_run(
        &llama(),
        [folder.path().as_os_str(), "-p".as_ref(), "a".as_ref()],
    );
    refusal(output, 2, &["one argument too many"]);
    let output = emel(
        "tokenize",
        &llama(),
        ["-f".as_ref(), folder.path().as_os_str()],
    );
    refusal(output, 1, &["directory"]);
}

#[test]
fn standard_input_that_is_no_text_is_refused() {
    let mut child = command("emel-run")
        .arg(llama())
        .args(words("-f - --ram-budget 64M"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\xc3\x28").unwrap();
    let output = child.wait_with_output().unwrap();
    refusal(output, 1, &["standard input", "byte 0 is not UTF-8"]);
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_anything_is_generated() {
    // Nothing on standard output: `refusal` sees to it.
    let output = emel_run(&llama(), words("-p hello --stats-json /nonexistent/s.json"));
    refusal(
        output,
        1,
        &[
            "/nonexistent/s.json",
            "cannot write statistics",
            "check the folder",
        ],
    );
    let output = emel(
        "eval",
        &llama(),
        words("--tokens 1,2 --logits /nonexistent/l.npy"),
    );
    refusal(
        output,
        1,
        &[
            "/nonexistent/l.npy",
            "cannot write logits",
            "check the folder",
        ],
    );
    let output = emel("eval", &llama(), words("--tokens 1,2 --logits /dev/full"));
    refusal(
        output,
        1,
        &["/dev/full", "cannot write logits", "No space left"],
    );
}

#[test]
fn a_budget_too_small_for_a_profile_says_what_it_takes() {
    let profile = ["--profile", "/dev/null", "--ram-budget", "1M"];
    let arguments = || words("-p hello -c 64").chain(profile);
    let message = refusal(
        command("emel-run")
            .arg(llama())
            .args(arguments())
            .output()
            .unwrap(),
        1,
        &[],
    );
    let (_, freed) = message
        .split_once("leaving out the profile would free ")
        .unwrap();
    let (freed, _) = freed.split_once(" bytes").unwrap();
    assert!(freed.parse::<u64>().unwrap() > 1 << 20, "{message}");
    let without = words("-p hello -c 64 --ram-budget 1M");
    let message_without = refusal(
        command("emel-run")
            .arg(llama())
            .args(without)
            .output()
            .unwrap(),
        1,
        &[],
    );
    assert!(!message_without.contains("--profile"));
    assert!(smallest_budget(&message) > smallest_budget(&message_without));
}

#[test]
fn an_output_never_replaces_the_model() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model.gguf");
    let link = folder.path().join("link");
    fs::copy(llama(), &model).unwrap();
    std::os::unix::fs::symlink(&model, &link).unwrap();
    let link = link.to_str().unwrap();
    let output = emel_run(&model, ["-p", "hello", "--stats-json", link]);
    refusal(output, 1, &["this is the model", "choose another name"]);
    let output = emel("eval", &model, ["--tokens", "1,2", "--logits", link]);
    refusal(output, 1, &["this is the model", "choose another name"]);
    assert_eq!(fs::read(&model).unwrap(), fs::read(llama()).unwrap());
}

#[test]
fn a_full_standard_output_is_an_error() {
    for arguments in [
        "plan",
        "plan --json",
        "tokenize -p a",
        "eval --tokens 1,2 --json --ram-budget 64M",
    ] {
        let full = fs::File::create("/dev/full").unwrap();
        let mut parts = words(arguments);
        let mut command = command("emel");
        command.arg(parts.next().unwrap()).arg(llama()).args(parts);
        let output = command.stdout(full).output().unwrap();
        refusal(output, 1, &["standard output: cannot write: No space left"]);
    }
}

#[test]
fn biases_for_no_token_and_against_all_are_refused() {
    let run = |biases: &str| {
        let arguments = words("-p hello -n 2").chain(words(biases));
        emel_run(&llama(), arguments)
    };
    let expected = [
        "--logit-bias (-l) is 999999+inf",
        "below the vocabulary's 384",
    ];
    refusal(run("-l 999999+inf"), 2, &expected);
    let all: String = (0..384).map(|id| format!("-l {id}-inf ")).collect();
    refusal(run(&all), 2, &["-l", "-inf for all of the 384 tokens"]);
    result(run("-l 5-inf -l 7+1.5"));
}

#[test]
fn types_of_keys_and_values_that_do_not_exist_are_refused_and_the_others_planned() {
    refusal(
        emel_run(&llama(), words("-p hello --kv q4_0")),
        2,
        &["--kv", "f16, f32, q8_0"],
    );
    result(emel_run(&llama(), words("-p hello -n 4 --kv q8_0")));
    let plan = result(emel("plan", &llama(), words("-c 64 --kv q8_0")));
    assert!(plan.contains("KV cache (64 tokens, q8_0)"), "{plan}");
}

#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    for ids in ["1,384", "4294967295"] {
        let output = emel("eval", &llama(), ["--tokens", ids]);
        refusal(output, 1, &["outside the vocabulary of 384"]);
    }
    for ids in ["4294967296", "-1", "1,,2", "", "1,x", "1;2"] {
        refusal(emel("eval", &llama(), ["--tokens", ids]), 2, &["--tokens"]);
    }
}

#[test]
fn kernels_that_do_not_exist_are_refused() {
    let mut run = command("emel-run");
    run.arg(llama())
        .args(["-p", "hello"])
        .env("EMEL_KERNELS", "bogus");
    refusal(
        run.output().unwrap(),
        1,
        &["EMEL_KERNELS=bogus", "offers scalar", "unset it"],
    );
    let mut run = command("emel");
    run.arg("eval")
        .arg(llama())
        .args(["--tokens", "1"])
        .env("EMEL_KERNELS", "bogus");
    refusal(run.output().unwrap(), 1, &["EMEL_KERNELS=bogus"]);
}
