//! What an engine is, for those who use it.

use std::sync::Arc;

use emel_loader::reader::Backend;
#[cfg(feature = "chat")]
use emel_model::chat::ChatTemplates;
use emel_model::tokenizer::Tokenizer;

use crate::blueprint::ContextRoom;
use crate::notice::Notice;
use crate::text_limit::TextLimit;

/// What an engine is, for those who use it.
pub struct Description {
    /// Text to token ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The form of a conversation.
    #[cfg(feature = "chat")]
    pub chat_templates: ChatTemplates,
    /// Tokens a request may have, prompt included.
    pub context: usize,
    /// How many more it could have.
    pub context_room: ContextRoom,
    /// Tokens in the vocabulary, as many as a row of logits has.
    pub vocabulary: usize,
    /// How long the text of a prompt may be.
    pub text_limit: TextLimit,
    /// The reader in use.
    pub backend: Backend,
    /// Whether what is learnt about experts is written to a file when the engine ends.
    pub keeps_heat: bool,
    /// What the user should know: choices made for them, fallbacks, unusual files.
    pub notices: Vec<Notice>,
}
