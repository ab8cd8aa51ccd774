//! Chat templates against Python's jinja2, and templates and conversations that no
//! prompt can be made of.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use emel_loader::gguf::{self, Catalog};
use emel_model::chat::{
    CHATML, ChatError, ChatTemplate, Conversation, ConversationError, SpecialTexts,
    assistant_message, prompt_ids,
};
use emel_model::tokenizer::Tokenizer;
use emel_tests::fixtures::{fixture, json};
use serde::Deserialize;
use serde_json::Value;

/// 2026-03-05 14:07:09 UTC, as in `tests/tools/render_reference.py`.
pub(crate) const NOW: i64 = 1_772_719_629;

#[derive(Deserialize)]
struct Golden {
    bos_token: Option<String>,
    eos_token: Option<String>,
    rendered: BTreeMap<String, Rendered>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rendered {
    Text(String),
    Error(String),
}

fn source(name: &str) -> String {
    std::fs::read_to_string(fixture(&format!("chat/{name}.jinja"))).unwrap()
}

pub(crate) fn template(source: &str) -> ChatTemplate {
    let special = SpecialTexts {
        bos: Some("<s>".to_owned()),
        eos: Some("</s>".to_owned()),
    };
    ChatTemplate::new(source, special).unwrap()
}

fn conversation(messages: &str) -> Conversation {
    Conversation::from_json(messages).unwrap()
}

pub(crate) fn hello() -> Conversation {
    conversation(r#"[{"role": "user", "content": "hello"}]"#)
}

fn failure(source: &str) -> ChatError {
    template(source).render(&hello()).unwrap_err()
}

#[test]
fn templates_of_all_families_render_as_in_python() {
    let golden: BTreeMap<String, Golden> = json("chat/golden.json");
    let conversations: BTreeMap<String, Value> = json("chat/conversations.json");
    assert!(golden.len() >= 11, "{} templates", golden.len());
    let mut wrong = Vec::new();
    for (name, golden) in golden {
        let special = SpecialTexts {
            bos: golden.bos_token,
            eos: golden.eos_token,
        };
        let template = ChatTemplate::new(&source(&name), special).unwrap().at(NOW);
        assert_eq!(golden.rendered.len(), conversations.len());
        for (what, expected) in golden.rendered {
            let found = template.render(&conversation(&conversations[&what].to_string()));
            match (expected, found) {
                (Rendered::Text(expected), Ok(found)) if found == expected => {}
                (Rendered::Error(expected), Err(ChatError::Refused { message, .. }))
                    if message == expected => {}
                (Rendered::Text(expected) | Rendered::Error(expected), found) => {
                    let found = found.unwrap_or_else(|error| format!("error: {error}"));
                    wrong.push(format!("== {name}, {what}\n{expected}\n-- found\n{found}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[derive(Deserialize)]
struct FolderGolden {
    source: String,
    rendered: BTreeMap<String, String>,
}

/// FNV-1a with 64 bits.
fn fnv(text: &str) -> String {
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// `EMEL_TEMPLATES` names the folder, which `tests/tools/render_folder.py` made the hashes
/// of: templates of others are not kept here.
#[test]
fn the_templates_of_llama_cpp_render_as_in_python() {
    let Some(folder) = std::env::var_os("EMEL_TEMPLATES") else {
        eprintln!("skipped: EMEL_TEMPLATES names no folder of chat templates");
        return;
    };
    let golden: BTreeMap<String, FolderGolden> = json("chat/folder_golden.json");
    let requests: BTreeMap<String, Value> = json("chat/folder_conversations.json");
    let special = SpecialTexts {
        bos: Some("<s>".to_owned()),
        eos: Some("</s>".to_owned()),
    };
    let mut wrong = Vec::new();
    for (file, golden) in golden {
        let source = std::fs::read_to_string(std::path::Path::new(&folder).join(&file)).unwrap();
        assert_eq!(fnv(&source), golden.source, "{file} is another template");
        assert_eq!(golden.rendered.len(), requests.len());
        for (name, expected) in golden.rendered {
            let found = ChatTemplate::new(&source, special.clone()).and_then(|template| {
                let conversation = conversation(&requests[&name].to_string());
                template.at(NOW).render_as_is(&conversation)
            });
            let found_hash = match &found {
                Ok(text) => fnv(text),
                Err(ChatError::Refused { message, .. }) => format!("refused {}", fnv(message)),
                Err(_) => "error".to_owned(),
            };
            if found_hash != expected {
                wrong.push(format!("{file}, {name}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_model_has_thought_is_given_as_thinking_where_a_template_wants_that() {
    let answer = r#"[{"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"}]"#;
    let rendered = |source: &str| template(source).render(&conversation(answer)).unwrap();
    assert_eq!(rendered("{{ messages[1].thinking }}"), "hm");
    assert_eq!(rendered("{{ messages[1]['thinking'] }}"), "hm");
    let both = "{{ messages[1].reasoning_content }}{{ messages[1].thinking }}";
    assert_eq!(rendered(both), "hm");
    assert_eq!(rendered("{{ messages[1] | length }}"), "3");
}

#[test]
fn arguments_given_as_text_render_as_those_given_as_objects() {
    let conversations: BTreeMap<String, Value> = json("chat/conversations.json");
    let mut request = conversations["a tool called"].clone();
    let objects = conversation(&request.to_string());
    let arguments = request
        .pointer_mut("/messages/1/tool_calls/0/function/arguments")
        .unwrap();
    *arguments = arguments.to_string().into();
    let texts = conversation(&request.to_string());
    for name in ["qwen2.5", "qwen3", "glm4", "llama3", "gpt-oss", "mistral"] {
        let template = template(&source(name)).at(NOW);
        let expected = template.render(&objects).unwrap();
        assert!(expected.contains("Zürich"), "{name}: {expected}");
        assert_eq!(template.render(&texts).unwrap(), expected, "{name}");
    }
}

#[test]
fn text_is_put_in_parts_for_templates_that_take_nothing_else() {
    let template = template(
        "{% for message in messages %}{% for part in message.content %}\
         {% if part.type == 'text' %}[{{ part.text }}]{% endif %}{% endfor %}{% endfor %}",
    );
    assert_eq!(template.render(&hello()).unwrap(), "[hello]");
}

#[test]
fn an_image_for_a_template_of_text_is_refused_by_its_place() {
    let image = r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#;
    let error = template(CHATML).render(&conversation(image)).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("messages[0].content[0] is {\"type\":\"image_url\""),
        "{message}"
    );
}

#[test]
fn a_template_that_does_not_parse_names_its_line() {
    for (source, line) in [
        ("a\n{% if x %}\nb", 3),
        ("{{ 'a }}", 1),
        ("a\nb\n{{ x | no_such_filter( }}", 3),
        ("{% endfor %}", 1),
        ("\n\n{% for x %}{% endfor %}", 3),
    ] {
        match ChatTemplate::new(source, SpecialTexts::default()) {
            Err(ChatError::Syntax { line: found, .. }) => assert_eq!(found, line, "{source}"),
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn a_template_that_fails_names_its_line_and_what_it_missed() {
    let message = failure("a\n{{ messages[0].missing.deeper }}").to_string();
    assert!(message.contains("line 2"), "{message}");
    let message = failure("{{ messages[0].content.no_such_method() }}").to_string();
    assert!(message.contains("no_such_method"), "{message}");
    let message = failure("{{ messages | no_such_filter }}").to_string();
    assert!(message.contains("no_such_filter"), "{message}");
    let message = failure("{{ unknown | tojson }}").to_string();
    assert!(message.contains("tojson"), "{message}");
    let message = failure("\n{{ strftime_now('%Q %!') }}").to_string();
    assert!(message.contains("line 2"), "{message}");
}

#[test]
fn a_template_may_refuse_a_conversation_in_its_own_words() {
    let error = failure("\n\n{{ raise_exception('no, because') }}");
    let expected = ChatError::Refused {
        line: 3,
        message: "no, because".to_owned(),
    };
    assert_eq!(error, expected);
    let in_macro = "{% macro m() %}{{ raise_exception('inner') }}{% endmacro %}{{ m() }}";
    assert!(matches!(failure(in_macro), ChatError::Refused { message, .. } if message == "inner"));
}

#[test]
fn templates_that_go_on_for_ever_or_grow_without_end_are_stopped() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s == n.s | list }}{{ [n.s, 1] | tojson(indent=200) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ [1] | tojson(indent='x' * 10000000) }}{{ ['x' * 1000000] * 1000000 }}",
    ] {
        let started = Instant::now();
        let error = failure(source);
        let stopped = matches!(
            error,
            ChatError::TooMuchWork { .. } | ChatError::Render { .. }
        );
        assert!(stopped, "{source}: {error}");
        assert!(started.elapsed() < Duration::from_secs(10), "{source}");
    }
}

#[test]
fn a_long_conversation_does_not_make_a_template_larger() {
    let mut long = Conversation::default();
    long.push("user", &"x".repeat(1 << 20));
    let times = |count: usize| {
        let source =
            format!("{{% for i in range({count}) %}}{{{{ messages[0].content }}}}{{% endfor %}}");
        template(&source).render(&long)
    };
    assert_eq!(times(10).unwrap().len(), 10 << 20);
    assert!(matches!(times(100), Err(ChatError::TooMuchWork { .. })));
}

#[test]
fn recursion_without_end_is_an_error_even_on_a_small_stack() {
    let calls = "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}".to_owned();
    let loops = "{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}".to_owned();
    let parentheses = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    let blocks = "{% if true %}".repeat(50_000);
    let lists = format!("{{{{ {}{} }}}}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = "{% set n = namespace(s=[]) %}{% for a in range(300) %}{% for b in range(300) %}\
                  {% set n.s = [n.s] %}{% endfor %}{% endfor %}{{ n.s | tojson }}"
        .to_owned();
    let dropped = "{% set n = namespace(s=[]) %}{% for a in range(300) %}{% for b in range(300) %}\
                   {% set n.s = [n.s] %}{% endfor %}{% endfor %}{{ no_such_function() }}"
        .to_owned();
    for source in [calls, loops, parentheses, blocks, lists, nested, dropped] {
        let start: String = source.chars().take(60).collect();
        let run = move || {
            let template = ChatTemplate::new(&source, SpecialTexts::default())?;
            template.render(&hello())
        };
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
        let outcome = thread.unwrap().join().unwrap();
        assert!(outcome.is_err(), "{start}");
    }
}

#[test]
fn long_chains_are_refused_and_those_that_are_not_compile_on_a_small_stack() {
    let rendered = |source: String| {
        let run = move || ChatTemplate::new(&source, SpecialTexts::default())?.render(&hello());
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
        thread.unwrap().join().unwrap()
    };
    for (start, link, end) in [
        ("{{ 1", "+1", " }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ a", ".b", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 9", "*9", " }}"),
        ("{{ 1", "~1", " }}"),
    ] {
        let chain = |links: usize| format!("{start}{}{end}", link.repeat(links));
        let refused = rendered(chain(120_000 / link.len())).unwrap_err();
        let ChatError::Syntax { line: 1, message } = &refused else {
            panic!("{link}: {refused}");
        };
        assert!(
            message.starts_with("an expression of over 8192"),
            "{link}: {message}"
        );
        match rendered(chain(4000)) {
            Ok(text) => assert!(text.len() <= 4001, "{link}"),
            // `a.b.b`, a product of 4000 factors, and 4000 texts that are made longer.
            Err(error) => assert!(["*9", ".b", "~1"].contains(&link), "{link}: {error}"),
        }
    }
    // Branches are no chain.
    let branches = format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(10_000));
    assert_eq!(rendered(branches).unwrap(), "");
}

#[test]
fn a_long_conversation_is_no_work_without_end() {
    let mut long = Conversation::default();
    for index in 0..1000 {
        let role = if index % 2 == 0 { "user" } else { "assistant" };
        long.push(role, &"some words that were said ".repeat(20));
    }
    long.push("user", &"x".repeat(4 << 20));
    for name in ["smollm2", "qwen3", "glm4", "mistral", "gemma3", "gpt-oss"] {
        let prompt = template(&source(name)).render(&long);
        assert!(prompt.unwrap().len() > 4 << 20, "{name}");
    }
}

#[test]
fn wrong_messages_are_refused_by_their_place() {
    for (text, expected) in [
        ("", "not JSON: EOF"),
        ("[{]", "line 1 column 3"),
        ("3", "the JSON is 3, expected an array of messages"),
        ("{}", "`messages` is missing"),
        ("[]", "`messages` is [], expected an array of one"),
        (r#"{"messages": {"role": "user"}}"#, "`messages` is {"),
        ("[1]", "messages[0] is 1, expected an object"),
        (
            "[{}]",
            "messages[0].role is missing, expected one of system",
        ),
        (
            r#"[{"role": "user", "content": "a"}, {"role": "usr"}]"#,
            "messages[1].role is \"usr\", expected one of system",
        ),
        (r#"[{"role": 1}]"#, "messages[0].role is 1"),
        (
            r#"[{"role": "user", "content": 3}]"#,
            "messages[0].content is 3, expected a string",
        ),
        (
            r#"[{"role": "user", "content": [{"type": "text"}]}]"#,
            "messages[0].content[0] is {",
        ),
        (
            r#"[{"role": "assistant", "tool_calls": [{"name": 3}]}]"#,
            "messages[0].tool_calls is [",
        ),
        (
            r#"{"messages": [{"role": "user"}], "tools": {}}"#,
            "`tools` is {}",
        ),
        (
            r#"{"messages": [{"role": "user"}], "add_generation_prompt": 1}"#,
            "`add_generation_prompt` is 1, expected true or false",
        ),
    ] {
        let error = Conversation::from_json(text).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
    let deep = "[".repeat(100_000);
    let error = Conversation::from_json(&deep).unwrap_err();
    assert!(matches!(error, ConversationError::Json { .. }));
}

#[test]
fn a_prompt_begins_with_bos_once_and_ends_without_eos() {
    let tokenizer = |adds: bool| {
        let mut catalog = Catalog::open(fixture("arch/llama.gguf")).unwrap();
        let metadata = catalog.metadata_mut();
        for key in ["add_bos_token", "add_eos_token"] {
            let flag = gguf::Value::Bool(adds);
            metadata.insert(format!("tokenizer.ggml.{key}"), flag);
        }
        Tokenizer::from_metadata(metadata).unwrap()
    };
    let adding = tokenizer(true);
    let bos = adding.bos().unwrap();
    let written = prompt_ids(&adding, "<|im_start|>hello");
    assert_eq!(written, prompt_ids(&adding, "hello"));
    assert_eq!(written, [bos, 255, 92, 92, 95]);
    assert_eq!(prompt_ids(&tokenizer(false), "hello"), written[1..]);
    assert_eq!(SpecialTexts::of(&adding).bos.unwrap(), "<|im_start|>");
}

#[test]
fn thoughts_in_channels_are_kept_apart_from_the_answer() {
    let parts = |answer: &str| {
        let message = assistant_message(answer);
        let text = |key: &str| message.get(key).and_then(Value::as_str).map(str::to_owned);
        (text("thinking"), text("content").unwrap())
    };
    let answer = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant\
                  <|channel|>final<|message|>yes";
    assert_eq!(parts(answer), (Some("hm".to_owned()), "yes".to_owned()));
    let stopped = "<|channel|>analysis<|message|>hm";
    assert_eq!(parts(stopped), (Some("hm".to_owned()), String::new()));
    assert_eq!(parts("plain"), (None, "plain".to_owned()));
}
