//! What a template takes: content as text or in parts, arguments of tools as objects or
//! as JSON text. The API allows both of each; many templates were written for one.
//!
//! A template is asked by rendering small conversations with it, as llama.cpp does. Some
//! (gpt-oss, LFM2) want what a model has thought under another name than the API gives
//! it, which the source shows.

use std::io;

use serde::Serialize as _;
use serde_json::ser::Formatter;
use serde_json::{Value, json};

use super::conversation::{Conversation, ConversationError, form, text_part};
use super::{ChatError, ChatTemplate};

/// A text that no template has of its own.
const PROBE: &str = "emel-probe";

/// The forms that a template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forms {
    /// Content as a string.
    text: bool,
    /// Content as an array of parts.
    parts: bool,
    /// Arguments of a tool call as an object.
    object_arguments: bool,
    /// What a model has thought as `thinking`, where the API has `reasoning_content`.
    thinking: bool,
}

impl Forms {
    /// Asks a template. That it fails is an answer.
    ///
    /// # Errors
    /// When it does not come to an end, as it then would not for any conversation.
    pub(super) fn probe(template: &ChatTemplate) -> Result<Self, ChatError> {
        let shows = |conversation: &Conversation| match template.render_as_is(conversation) {
            // A template that writes out whatever it gets writes Python.
            Ok(shown) => Ok(shown.contains(PROBE)
                && !shown.contains("'type'")
                && !shown.contains("'probe'")),
            Err(error @ (ChatError::TooMuchWork { .. } | ChatError::TooMuchTime { .. })) => {
                Err(error)
            }
            Err(_) => Ok(false),
        };
        let message = |role: &str, key: &str, value: Value| {
            let message = json!({"role": role, "content": "", key: value});
            message.as_object().cloned().unwrap_or_default()
        };
        let content = |content: Value| {
            let mut conversation = Conversation::default();
            conversation.push_message(message("user", "content", content));
            conversation
        };
        let call = |arguments: Value| {
            let mut conversation = content("hello".into());
            let function = json!({"name": "tool", "arguments": arguments});
            let calls = json!([{"id": "call00000", "type": "function", "function": function}]);
            conversation.push_message(message("assistant", "tool_calls", calls));
            let offered = json!({"name": "tool", "description": "", "parameters": {}});
            conversation.offer_tools(json!([{"type": "function", "function": offered}]));
            conversation
        };
        let takes_object = shows(&call(json!({"probe": PROBE})))?;
        let takes_text = || shows(&call(json!({"probe": PROBE}).to_string().into()));
        Ok(Self {
            text: shows(&content(PROBE.into()))?,
            parts: shows(&content(json!([text_part(PROBE)])))?,
            object_arguments: takes_object || !takes_text()?,
            thinking: template.names("thinking") && !template.names("reasoning_content"),
        })
    }

    /// The conversation in a form that the template takes.
    pub(super) fn fit(
        &self,
        conversation: &Conversation,
    ) -> Result<Conversation, ConversationError> {
        let mut fitting = conversation.clone();
        for (index, message) in fitting.messages_mut().iter_mut().enumerate() {
            if let Some(content) = message.get_mut("content") {
                self.fit_content(index, content)?;
            }
            if self.thinking && !message.contains_key("thinking") {
                let reasoning = message
                    .get("reasoning_content")
                    .filter(|text| text.is_string());
                if let Some(reasoning) = reasoning.cloned() {
                    message.insert("thinking".to_owned(), reasoning);
                }
            }
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten() {
                self.fit_arguments(call);
            }
        }
        Ok(fitting)
    }

    fn fit_content(&self, message: usize, content: &mut Value) -> Result<(), ConversationError> {
        match content {
            Value::Array(parts) if self.text && !self.parts => {
                let mut texts = Vec::with_capacity(parts.len());
                for (index, part) in parts.iter().enumerate() {
                    let text = part.get("text").and_then(Value::as_str);
                    texts.push(text.ok_or_else(|| {
                        let place = format!("messages[{message}].content[{index}]");
                        form(&place, part, "text, which is all this chat template takes")
                    })?);
                }
                *content = texts.join("\n").into();
            }
            Value::String(text) if self.parts && !self.text => {
                *content = json!([text_part(text)]);
            }
            _ => {}
        }
        Ok(())
    }

    fn fit_arguments(&self, call: &mut Value) {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            return;
        };
        match arguments {
            Value::String(text) if self.object_arguments => {
                // What is no object goes to the template as it is.
                let parsed = serde_json::from_str(text).ok();
                if let Some(object) = parsed.filter(Value::is_object) {
                    *arguments = object;
                }
            }
            Value::Object(_) if !self.object_arguments => *arguments = spaced(arguments).into(),
            _ => {}
        }
    }
}

/// JSON with the spaces that Python puts into it.
fn spaced(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    // Writing to memory cannot fail, and JSON is UTF-8.
    let _ = value.serialize(&mut serializer);
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
