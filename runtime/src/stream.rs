//! The tokens of an answer, as they are made.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc::Receiver;

use crate::engine::Shared;
use crate::error::Error;
use crate::token_text::TokenText;
use crate::usage::Usage;

/// One generated token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id in the model's vocabulary.
    pub id: u32,
    /// The text that is complete with it: whole characters only, so it can be empty,
    /// and longer than the token's own text. A character that the answer leaves
    /// incomplete at its end is not shown.
    pub text: TokenText,
}

pub(crate) enum Event {
    /// So many tokens of the prompt need not be computed.
    Resumed(usize),
    Token(Token),
    Failed(Error),
    Finished(Box<Usage>),
}

/// A [`Stream`] of tokens. Dropping it cancels the request: the engine stops at its
/// next step and is then ready for another.
pub struct TokenStream {
    events: Receiver<Event>,
    resumed_tokens: Option<usize>,
    usage: Option<Usage>,
    is_over: bool,
    stops: Arc<AtomicBool>,
    // After the receiver, so that the engine sees the request cancelled before it ends.
    _engine: Arc<Shared>,
}

impl TokenStream {
    pub(crate) fn new(
        events: Receiver<Event>,
        stops: Arc<AtomicBool>,
        engine: Arc<Shared>,
    ) -> Self {
        Self {
            events,
            resumed_tokens: None,
            usage: None,
            is_over: false,
            stops,
            _engine: engine,
        }
    }

    /// The next token, `None` after the last. The same as the `Stream`, for callers
    /// without its combinators.
    ///
    /// # Errors
    /// When the request has failed; the stream is then over.
    pub async fn next(&mut self) -> Option<Result<Token, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Has the request end after the pass that runs, with its usage after the tokens that
    /// are made by then. All that has been computed stays; dropping the stream leaves the
    /// pass in its middle, after which models with recurrent layers have to start over.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Release);
    }

    /// How many tokens of the prompt the engine had computed before; known from the first
    /// token on.
    pub fn resumed_tokens(&self) -> Option<usize> {
        self.resumed_tokens
    }

    /// What the request has cost, once the stream is over.
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_ref()
    }
}

impl Stream for TokenStream {
    type Item = Result<Token, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let event = loop {
            match self.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Event::Resumed(tokens))) => self.resumed_tokens = Some(tokens),
                Poll::Ready(event) => break event,
            }
        };
        self.is_over = !matches!(event, Some(Event::Token(_)));
        Poll::Ready(match event {
            Some(Event::Resumed(_)) => unreachable!("taken above"),
            Some(Event::Token(token)) => Some(Ok(token)),
            Some(Event::Failed(error)) => Some(Err(error)),
            Some(Event::Finished(usage)) => {
                self.usage = Some(*usage);
                None
            }
            None => Some(Err(Error::Stopped)),
        })
    }
}
