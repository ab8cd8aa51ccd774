//! Why a conversation does not become a prompt.

use std::error::Error as _;
use std::time::Duration;

use emel_loader::gguf::MetadataError;
use minijinja::ErrorKind;

use super::conversation::ConversationError;

/// A chat template that cannot be used, or not for this conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template does not parse.
    #[error("chat template, line {line}: {message}; expected a Jinja template; use another one")]
    Syntax {
        /// The line of the template, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The model's template is no text.
    #[error("{0}; use another template")]
    Metadata(#[from] MetadataError),
    /// The template refuses the conversation, with `raise_exception`.
    #[error(
        "the chat template refuses the conversation: {message} (line {line}); change the messages or use another template"
    )]
    Refused {
        /// The line of the template, from 1.
        line: usize,
        /// What the template says.
        message: String,
    },
    /// The template fails on the conversation.
    #[error("chat template, line {line}: {message}; change the messages or use another template")]
    Render {
        /// The line of the template, from 1.
        line: usize,
        /// What failed there.
        message: String,
    },
    /// The template takes more work or memory than it may.
    #[error(
        "chat template, line {line}: more work than any conversation takes; the template may go on for ever, use another template"
    )]
    TooMuchWork {
        /// The line of the template it had come to, from 1.
        line: usize,
    },
    /// The template takes more time than it may.
    #[error(
        "the chat template has not come to an end in {} s; use another template",
        limit.as_secs()
    )]
    TooMuchTime {
        /// The time it had.
        limit: Duration,
    },
    /// The thread that renders cannot be started.
    #[error(
        "cannot start a thread for the chat template: {message}; raise the limit (ulimit -u, ulimit -v)"
    )]
    Thread {
        /// What the system said.
        message: String,
    },
    /// The conversation is in no form that the template takes.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
}

/// What `raise_exception` was given.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Raised {
    pub(super) message: String,
}

impl ChatError {
    pub(super) fn syntax(error: &minijinja::Error) -> Self {
        Self::Syntax {
            line: error.line().unwrap_or(1),
            message: describe(error),
        }
    }

    pub(super) fn render(error: &minijinja::Error) -> Self {
        let line = error.line().unwrap_or(1);
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(found) = cause {
            if let Some(raised) = found.downcast_ref::<Raised>() {
                let message = raised.message.clone();
                return Self::Refused { line, message };
            }
            let inner = found.downcast_ref::<minijinja::Error>();
            if inner.is_some_and(|inner| inner.kind() == ErrorKind::OutOfFuel) {
                return Self::TooMuchWork { line };
            }
            cause = found.source();
        }
        Self::Render {
            line,
            message: describe(error),
        }
    }
}

fn describe(error: &minijinja::Error) -> String {
    let mut message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    if let Some(source) = error.source() {
        message += &format!(": {source}");
    }
    message
}
