//! A conversation as the OpenAI API writes it.

use serde_json::{Map, Value, json};

/// Who may speak.
const ROLES: [&str; 6] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
];

/// Messages that are none, or not in the form of the OpenAI API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// The text is no JSON.
    #[error("not JSON: {message}; expected an array of messages or an object with `messages`")]
    Json {
        /// What the parser says, with line and column.
        message: String,
    },
    /// Something is not what the API puts there.
    #[error("{place} is {found}, expected {expected}")]
    Form {
        /// Where, as in `messages[2].role`.
        place: String,
        /// What is there.
        found: String,
        /// What would be right.
        expected: String,
    },
}

/// What was said so far, and what the template is told besides.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    messages: Vec<Map<String, Value>>,
    tools: Option<Value>,
    documents: Option<Value>,
    variables: Map<String, Value>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
}

impl Default for Conversation {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            tools: None,
            documents: None,
            variables: Map::new(),
            add_generation_prompt: true,
        }
    }
}

impl Conversation {
    /// Reads an array of messages, or an object with `messages` and, if wanted,
    /// `tools`, `documents`, `add_generation_prompt` (else true) and
    /// `chat_template_kwargs`, the template's own variables. Other keys of a request
    /// are passed over.
    ///
    /// # Errors
    /// When the text is no JSON, or a message, role or content is none of the API's.
    pub fn from_json(text: &str) -> Result<Self, ConversationError> {
        let parsed = serde_json::from_str(text).map_err(|error| ConversationError::Json {
            message: error.to_string(),
        })?;
        let mut request = match parsed {
            Value::Object(request) => request,
            messages @ Value::Array(_) => Map::from_iter([("messages".to_owned(), messages)]),
            other => {
                let expected = "an array of messages or an object with `messages`";
                return Err(form("the JSON", &other, expected));
            }
        };
        let mut take = |key: &str| request.remove(key).filter(|value| !value.is_null());
        let mut conversation = Self::default();
        match take("messages") {
            Some(Value::Array(messages)) if !messages.is_empty() => {
                for (index, message) in messages.into_iter().enumerate() {
                    let place = format!("messages[{index}]");
                    conversation
                        .messages
                        .push(checked_message(&place, message)?);
                }
            }
            other => {
                let found = other.unwrap_or_default();
                return Err(form(
                    "`messages`",
                    &found,
                    "an array of one message or more",
                ));
            }
        }
        conversation.tools = objects("tools", take("tools"))?;
        conversation.documents = objects("documents", take("documents"))?;
        match take("add_generation_prompt") {
            None => {}
            Some(Value::Bool(flag)) => conversation.add_generation_prompt = flag,
            Some(other) => return Err(form("`add_generation_prompt`", &other, "true or false")),
        }
        match take("chat_template_kwargs") {
            None => {}
            Some(Value::Object(variables)) => conversation.variables = variables,
            Some(other) => return Err(form("`chat_template_kwargs`", &other, "an object")),
        }
        Ok(conversation)
    }

    /// Adds a message of text.
    pub fn push(&mut self, role: &str, content: &str) {
        let message = [("role", role), ("content", content)];
        let message = message.map(|(key, text)| (key.to_owned(), text.into()));
        self.messages.push(Map::from_iter(message));
    }

    /// Adds a message as the API writes it.
    pub fn push_message(&mut self, message: Map<String, Value>) {
        self.messages.push(message);
    }

    /// Takes the last message back.
    pub fn pop(&mut self) -> Option<Map<String, Value>> {
        self.messages.pop()
    }

    /// The messages, as the API writes them.
    pub fn messages(&self) -> &[Map<String, Value>] {
        &self.messages
    }

    pub(super) fn messages_mut(&mut self) -> &mut [Map<String, Value>] {
        &mut self.messages
    }

    /// Forgets all messages.
    pub fn clear(&mut self) {
        self.messages.clear();
    }

    /// Sets the message of the system that the conversation begins with, or removes it.
    pub fn set_system(&mut self, content: Option<&str>) {
        if self.begins_with_system() {
            self.messages.remove(0);
        }
        if let Some(text) = content {
            self.push("system", text);
            self.messages.rotate_right(1);
        }
    }

    /// Forgets the oldest message of the user and what answers it, but neither the system's
    /// message nor the last message of the user. Says whether there was one.
    pub fn drop_oldest_turn(&mut self) -> bool {
        let begin = usize::from(self.begins_with_system());
        let is_user = |message: &Map<String, Value>| is_of(message, "user");
        let later = self.messages.iter().skip(begin + 1);
        match later.clone().position(is_user) {
            Some(turn) => {
                self.messages.drain(begin..=begin + turn);
                true
            }
            None => false,
        }
    }

    /// Takes back the last message of the user and what answers it. Returns its text, or none
    /// if there is no message of the user.
    pub fn pop_turn(&mut self) -> Option<String> {
        let is_user = |message: &Map<String, Value>| is_of(message, "user");
        let at = self.messages.iter().rposition(is_user)?;
        let turn = self.messages.split_off(at);
        let content = turn[0].get("content").and_then(Value::as_str);
        Some(content.unwrap_or_default().to_owned())
    }

    /// The system prompt, if it is text.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first()?;
        let text = first.get("content")?.as_str()?;
        self.begins_with_system().then_some(text)
    }

    /// Whether the last message has this role.
    pub fn ends_with(&self, role: &str) -> bool {
        self.messages.last().is_some_and(|last| is_of(last, role))
    }

    fn begins_with_system(&self) -> bool {
        let first = self.messages.first();
        first.is_some_and(|message| is_of(message, "system"))
    }

    /// The template's own variables (`chat_template_kwargs`).
    pub fn variables_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.variables
    }

    /// Whether tools are offered.
    pub fn has_tools(&self) -> bool {
        let tools = self.tools.as_ref().and_then(Value::as_array);
        tools.is_some_and(|tools| !tools.is_empty())
    }

    pub(super) fn offer_tools(&mut self, tools: Value) {
        self.tools = Some(tools);
    }

    /// The template's variables. Absent tools and documents are `none`, as in
    /// transformers.
    pub(super) fn variables(&self) -> Map<String, Value> {
        let mut variables = self.variables.clone();
        let messages = self.messages.iter().cloned().map(Value::Object).collect();
        variables.insert("messages".to_owned(), Value::Array(messages));
        variables.insert("tools".to_owned(), self.tools.clone().into());
        variables.insert("documents".to_owned(), self.documents.clone().into());
        let flag = self.add_generation_prompt.into();
        variables.insert("add_generation_prompt".to_owned(), flag);
        variables
    }

    /// About how large it is.
    pub(super) fn bytes(&self) -> usize {
        let messages = self.messages.iter().flat_map(Map::iter);
        let named = messages.chain(&self.variables);
        let values = self.tools.iter().chain(&self.documents);
        let named: usize = named.map(|(key, value)| key.len() + bytes(value)).sum();
        named + values.map(bytes).sum::<usize>()
    }
}

/// The marks of models that write in channels (gpt-oss), in the order of an answer.
pub mod channels {
    /// What begins thoughts.
    pub const ANALYSIS: &str = "<|channel|>analysis<|message|>";
    /// What ends them.
    pub const END: &str = "<|end|>";
    /// What begins the next part.
    pub const START: &str = "<|start|>assistant";
    /// What begins the answer proper.
    pub const FINAL: &str = "<|channel|>final<|message|>";
}

/// The message that an answer becomes. Models that write in channels (gpt-oss) put
/// their thoughts before the answer proper; their templates want them apart.
pub fn assistant_message(answer: &str) -> Map<String, Value> {
    let mut message = Map::from_iter([("role".to_owned(), "assistant".into())]);
    let (before, content) = match answer.split_once(channels::FINAL) {
        Some(parts) => parts,
        None if answer.starts_with(channels::ANALYSIS) => (answer, ""),
        None => ("", answer),
    };
    message.insert("content".to_owned(), content.into());
    if let Some((_, thoughts)) = before.split_once(channels::ANALYSIS) {
        let thoughts = thoughts.split(channels::END).next().unwrap_or_default();
        message.insert("thinking".to_owned(), thoughts.into());
    }
    message
}

fn is_of(message: &Map<String, Value>, role: &str) -> bool {
    message.get("role").and_then(Value::as_str) == Some(role)
}

fn checked_message(place: &str, message: Value) -> Result<Map<String, Value>, ConversationError> {
    let Value::Object(message) = message else {
        return Err(form(place, &message, "an object with `role` and `content`"));
    };
    let role = message.get("role").unwrap_or(&Value::Null);
    if !role.as_str().is_some_and(|role| ROLES.contains(&role)) {
        let expected = format!("one of {}", ROLES.join(", "));
        return Err(form(&format!("{place}.role"), role, &expected));
    }
    match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (index, part) in parts.iter().enumerate() {
                check_part(&format!("{place}.content[{index}]"), part)?;
            }
        }
        Some(other) => {
            let expected = "a string, null or an array of parts";
            return Err(form(&format!("{place}.content"), other, expected));
        }
    }
    if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
        let has_name = |call: &Value| {
            let function = call.get("function").unwrap_or(call);
            function.get("name").is_some_and(Value::is_string)
        };
        let calls_found = calls.as_array();
        if !calls_found.is_some_and(|calls| calls.iter().all(has_name)) {
            let expected = "an array of calls with `function` and its `name`";
            return Err(form(&format!("{place}.tool_calls"), calls, expected));
        }
    }
    Ok(message)
}

fn check_part(place: &str, part: &Value) -> Result<(), ConversationError> {
    let kind = part.get("type").and_then(Value::as_str);
    let text = part.get("text").is_some_and(Value::is_string);
    if kind.is_none() || (kind == Some("text") && !text) {
        let expected = "a part such as {\"type\": \"text\", \"text\": …}";
        return Err(form(place, part, expected));
    }
    Ok(())
}

fn objects(key: &str, found: Option<Value>) -> Result<Option<Value>, ConversationError> {
    let Some(found) = found else { return Ok(None) };
    let are_objects = |items: &Vec<Value>| items.iter().all(Value::is_object);
    if found.as_array().is_some_and(are_objects) {
        Ok(Some(found))
    } else {
        Err(form(&format!("`{key}`"), &found, "an array of objects"))
    }
}

pub(super) fn form(place: &str, found: &Value, expected: &str) -> ConversationError {
    /// What is shown of a value.
    const FOUND_CHARACTERS: usize = 60;
    let text = found.to_string();
    let mut shown: String = text.chars().take(FOUND_CHARACTERS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    ConversationError::Form {
        place: place.to_owned(),
        found: if found.is_null() {
            "missing".to_owned()
        } else {
            shown
        },
        expected: expected.to_owned(),
    }
}

fn bytes(value: &Value) -> usize {
    /// About what the punctuation and a short value take.
    const VALUE_BYTES: usize = 8;
    match value {
        Value::String(text) => VALUE_BYTES + text.len(),
        Value::Array(items) => VALUE_BYTES + items.iter().map(bytes).sum::<usize>(),
        Value::Object(items) => items
            .iter()
            .map(|(key, value)| key.len() + bytes(value))
            .sum(),
        _ => VALUE_BYTES,
    }
}

/// A part of a message that is text.
pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(messages: &[(&str, &str)]) -> Conversation {
        let mut conversation = Conversation::default();
        for (role, content) in messages {
            conversation.push(role, content);
        }
        conversation
    }

    const LONG: [(&str, &str); 6] = [
        ("system", "s"),
        ("user", "1"),
        ("assistant", "a"),
        ("user", "2"),
        ("assistant", "b"),
        ("user", "3"),
    ];

    #[test]
    fn the_oldest_turns_are_dropped_but_never_the_system_prompt_nor_the_last_message() {
        let mut found = conversation(&LONG);
        assert!(found.drop_oldest_turn());
        let expected = [LONG[0], LONG[3], LONG[4], LONG[5]];
        assert_eq!(found, conversation(&expected));
        assert!(found.drop_oldest_turn());
        assert!(!found.drop_oldest_turn());
        assert_eq!(found, conversation(&[LONG[0], LONG[5]]));
        let mut found = conversation(&LONG[1..]);
        assert!(found.drop_oldest_turn() && found.drop_oldest_turn());
        assert!(!found.drop_oldest_turn());
        assert_eq!(found, conversation(&LONG[5..]));
        assert!(!Conversation::default().drop_oldest_turn());
    }

    #[test]
    fn the_last_turn_is_taken_back() {
        let mut found = conversation(&LONG);
        assert_eq!(found.pop_turn().as_deref(), Some("3"));
        assert_eq!(found.pop_turn().as_deref(), Some("2"));
        assert_eq!(found, conversation(&LONG[..3]));
        assert_eq!(found.pop_turn().as_deref(), Some("1"));
        assert_eq!(found.pop_turn(), None);
        assert_eq!(found, conversation(&LONG[..1]));
    }

    #[test]
    fn the_system_prompt_is_set_replaced_and_removed() {
        let mut found = conversation(&LONG[1..3]);
        found.set_system(Some("s"));
        assert_eq!(found, conversation(&LONG[..3]));
        found.set_system(Some("other"));
        assert_eq!(
            found,
            conversation(&[("system", "other"), LONG[1], LONG[2]])
        );
        found.set_system(None);
        assert_eq!(found, conversation(&LONG[1..3]));
    }
}
