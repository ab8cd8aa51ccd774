//! What chat templates are made of against Python's jinja2: every test, filter, method and
//! operator with values of every type.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::BTreeMap;

use emel_model::chat::{ChatError, ChatTemplate, SpecialTexts};
use emel_tests::fixtures::fixture;
use serde::Deserialize;
use serde_json::Value;

use crate::chat::{NOW, hello, template};

#[derive(Deserialize)]
struct Table {
    values: Vec<String>,
    paired: Vec<String>,
    unary: BTreeMap<String, Vec<Value>>,
    binary: BTreeMap<String, Vec<Value>>,
    single: BTreeMap<String, Value>,
}

impl Table {
    fn read() -> Self {
        let file = std::fs::File::open(fixture("chat/jinja_table.json.gz")).unwrap();
        serde_json::from_reader(flate2::read::GzDecoder::new(file)).unwrap()
    }

    /// Templates and what Python makes of them: a text, or something else where it fails
    /// or writes an address.
    fn cases(self) -> Vec<(String, Value)> {
        let mut cases = Vec::new();
        for (template, results) in self.unary {
            assert_eq!(results.len(), self.values.len());
            for (x, result) in self.values.iter().zip(results) {
                cases.push((format!("{{% set x = {x} %}}{template}"), result));
            }
        }
        for (template, results) in self.binary {
            assert_eq!(results.len(), self.paired.len() * self.paired.len());
            let pairs = self.paired.iter();
            let pairs = pairs.flat_map(|x| self.paired.iter().map(move |y| (x, y)));
            for ((x, y), result) in pairs.zip(results) {
                let sets = format!("{{% set x = {x} %}}{{% set y = {y} %}}");
                cases.push((sets + &template, result));
            }
        }
        cases.extend(self.single);
        cases
    }
}

/// Cases that Python has a text for and that are an error here: filters, methods and
/// directives that no chat template uses, the text of namespaces, generators and views, and
/// what depends on how Python keeps its values.
const REFUSED_MAX: usize = 1050;

/// What the errors of these cases name, one word or more for each construct.
const REFUSED: [&str; 39] = [
    "the text of a value of type Namespace",
    "the text of a value of type generator",
    "the text of a value of type object",
    "comparing namespaces, functions or macros",
    "comparing generators or views of mappings",
    "cannot be sliced",
    "dict of a",
    "an argument of type",
    "the filter `abs`",
    "the filter `batch`",
    "the filter `dictsort`",
    "the filter `float`",
    "the filter `int`",
    "the filter `truncate`",
    "the filter `wordcount`",
    "filter filesizeformat",
    "filter urlencode",
    "test filter",
    "test test",
    "tojson: indent",
    "rounding",
    "reversing what is undefined",
    "escaping twice",
    "strftime_now(\"%:M %c\")",
    "`%` with a mapping",
    "the conversion `%c`",
    "the format `",
    "a width or precision",
    " ** ",
    "`isdigit` beyond ASCII",
    "`isalnum` beyond ASCII",
    "no method named",
    "function: cycler",
    "statement block",
    "too many arguments",
    "keyword arguments",
    "unexpected `",
    "cannot unpack",
    "`missing` is undefined",
];

#[test]
fn every_test_filter_method_and_operator_is_as_in_python_or_refused_by_name() {
    let cases = Table::read().cases();
    assert!(cases.len() > 28_000, "{} cases", cases.len());
    let mut refused = 0;
    let mut wrong = Vec::new();
    for (source, expected) in cases {
        let found = ChatTemplate::new(&source, SpecialTexts::default())
            .and_then(|template| template.at(NOW).render_as_is(&hello()));
        let is_named = |error: &ChatError| {
            let message = error.to_string();
            REFUSED.iter().any(|name| message.contains(name))
        };
        match (expected.as_str(), found) {
            (Some(expected), Ok(found)) if found == expected => {}
            (None, Err(_)) => {}
            (Some(_), Err(error)) if is_named(&error) => refused += 1,
            (_, found) => wrong.push(format!("{source}\n  python {expected}\n  {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused <= REFUSED_MAX, "{refused} are refused");
}

/// What the table has no row for. The texts are those of jinja2's immutable sandbox.
#[test]
fn methods_escapes_and_raw_blocks_are_as_in_python() {
    for (source, expected) in [
        (
            "{{ {'a': 1}.items is defined }}{{ {'a': 1}['items'] is defined }}",
            "TrueTrue",
        ),
        (
            "{{ {'items': 5}['items'] }}{{ {'items': 5}.items() | list }}",
            "5[('items', 5)]",
        ),
        (
            "{{ {'a': 1}.pop is defined }}{{ {'pop': 1}.pop is defined }}",
            "FalseFalse",
        ),
        (
            "{% set f = 'a'.upper %}{{ f() }}{{ f is callable }}{{ 1 if f }}",
            "ATrue1",
        ),
        (
            "{{ f is string }}{{ 'a'.upper is iterable }}{{ 'a'['upper']() }}",
            "FalseFalseA",
        ),
        (
            "{{ ['a'] | map(attribute='upper') | first is callable }}",
            "True",
        ),
        (
            "{{ 1 | attr('real') }}{{ {'a': 1} | attr('a') is defined }}",
            "1False",
        ),
        ("{{ {'title': 5}.title }}{{ {'count': 6}.count }}", "56"),
        (r"{{ 'a\/b\d\v' }}", "a\\/b\\d\x0b"),
        ("{{ 'a\\\nb' }}", "ab"),
        ("a{% raw %}   {% endraw %}b", "a   b"),
        ("a {%- raw %}\n   {%- endraw %}b", "ab"),
        ("{{ '{% raw %}' }}\nb", "{% raw %}\nb"),
        (
            "{{ 3 is gt(2) is true }}{{ 3 is gt 2 is true }}",
            "TrueTrue",
        ),
    ] {
        let found = template(source).render_as_is(&hello());
        assert_eq!(found.as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn what_python_refuses_is_refused_by_name() {
    for (source, named) in [
        ("{{ 1 is not odd is even }}", "two tests in a row"),
        ("{% raw +%}{% endraw %}", "`raw +%}`"),
        (r"{{ '\ud83d\ude00' }}", r"`\ud83d`"),
        (r"{{ '\N{DASH}' }}", r"`\N`"),
        ("{% set x = [1] %}{{ {x: 2} }}", "unhashable type: 'list'"),
        ("{{ [{'a': {{}: 2}}] }}", "unhashable type: 'dict'"),
        ("{{ 'a'.upper }}", "the text of a value of type object"),
        ("{{ 'a'.encode() }}", "encode"),
    ] {
        let found = ChatTemplate::new(source, SpecialTexts::default());
        let error = found.and_then(|template| template.render_as_is(&hello()));
        let message = error.expect_err(source).to_string();
        assert!(message.contains(named), "{source}: {message}");
    }
}
