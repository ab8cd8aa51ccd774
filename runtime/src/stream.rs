//! The tokens of an answer and the progress of its prompt, as they are made.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc;

use crate::error::Error;
use crate::token_text::TokenText;
use crate::usage::Usage;

/// Events that the engine may be ahead of a slow reader of its stream.
const STREAM_LENGTH: usize = 16;

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

/// What a stream yields while its request is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEvent {
    /// More of the prompt has been computed. The first comes when the request's turn has come,
    /// the others after each pass, and ten times a second within a long one. A reader that is
    /// slow gets the latest only; the last one before a token counts the whole prompt.
    Prompt(PromptProgress),
    /// The next token.
    Token(Token),
}

/// How much of a prompt has been computed, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptProgress {
    /// Tokens that the engine had computed before and that need not be computed again.
    pub resumed: usize,
    /// Tokens that are computed, those resumed included. A pass computes many tokens at
    /// once; while it runs, the part of its steps that is done counts as that part of its
    /// tokens.
    pub computed: usize,
    /// Tokens of the prompt.
    pub total: usize,
}

pub(crate) enum Event {
    /// The progress of the prompt has changed; it is read from what both ends share.
    Prompt,
    Token(Token),
    Failed(Error),
    Finished(Box<Usage>),
}

/// What both ends of a stream share besides its events.
struct Link {
    /// Whether the request is to end after the pass that runs.
    stops: AtomicBool,
    resumed: AtomicUsize,
    computed: AtomicUsize,
    total: usize,
    /// Whether an [`Event::Prompt`] is under way: there is one at most, so that progress never
    /// takes the room of tokens.
    is_announced: AtomicBool,
}

/// The engine's end of a stream.
#[derive(Clone)]
pub(crate) struct EventSender {
    events: mpsc::Sender<Event>,
    link: Arc<Link>,
}

/// The stream has been dropped.
pub(crate) struct Dropped;

impl EventSender {
    /// Whether the stream has been dropped.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether the request is to end after the pass that runs.
    pub(crate) fn stops(&self) -> bool {
        self.link.stops.load(Ordering::Acquire)
    }

    pub(crate) async fn send(&self, event: Event) -> Result<(), Dropped> {
        self.events.send(event).await.map_err(|_| Dropped)
    }

    /// The prompt begins; `tokens` of it need not be computed.
    pub(crate) fn resumed(&self, tokens: usize) {
        self.link.resumed.store(tokens, Ordering::Relaxed);
        self.computed(tokens);
    }

    /// `tokens` of the prompt are computed.
    pub(crate) fn computed(&self, tokens: usize) {
        self.link.computed.store(tokens, Ordering::Relaxed);
        // An exchange on both sides: the side that comes second sees what the first has stored.
        if !self.link.is_announced.swap(true, Ordering::AcqRel) {
            // Fails only if the stream has been dropped: no token has been sent yet.
            let _ = self.events.try_send(Event::Prompt);
        }
    }
}

/// A [`Stream`] of tokens. Dropping it cancels the request: the engine stops at its
/// next step and is then ready for another.
pub struct TokenStream {
    events: mpsc::Receiver<Event>,
    progress: Option<PromptProgress>,
    usage: Option<Usage>,
    is_over: bool,
    link: Arc<Link>,
    // After the receiver, so that the engine sees the request cancelled before it ends.
    _engine: Arc<dyn Any + Send + Sync>,
}

impl TokenStream {
    /// Both ends of a stream for a prompt of `total` tokens.
    pub(crate) fn new(total: usize, engine: Arc<dyn Any + Send + Sync>) -> (EventSender, Self) {
        let (sender, events) = mpsc::channel(STREAM_LENGTH);
        let link = Arc::new(Link {
            stops: AtomicBool::new(false),
            resumed: AtomicUsize::new(0),
            computed: AtomicUsize::new(0),
            total,
            is_announced: AtomicBool::new(false),
        });
        let stream = Self {
            events,
            progress: None,
            usage: None,
            is_over: false,
            link: Arc::clone(&link),
            _engine: engine,
        };
        let events = sender;
        (EventSender { events, link }, stream)
    }

    /// The next token, `None` after the last. The same as the `Stream`, for callers
    /// without its combinators.
    ///
    /// # Errors
    /// When the request has failed; the stream is then over.
    pub async fn next(&mut self) -> Option<Result<Token, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The next token or progress of the prompt, `None` after the last token.
    ///
    /// # Errors
    /// When the request has failed; the stream is then over.
    pub async fn next_event(&mut self) -> Option<Result<StreamEvent, Error>> {
        std::future::poll_fn(|context| self.poll_next_event(context)).await
    }

    /// As [`TokenStream::next_event`], for callers that wait for other things too.
    pub fn poll_next_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<StreamEvent, Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Poll::Ready(event) = self.events.poll_recv(context) else {
            return Poll::Pending;
        };
        self.is_over = !matches!(event, Some(Event::Prompt | Event::Token(_)));
        Poll::Ready(match event {
            Some(Event::Prompt) => Some(Ok(StreamEvent::Prompt(self.take_progress()))),
            Some(Event::Token(token)) => Some(Ok(StreamEvent::Token(token))),
            Some(Event::Failed(error)) => Some(Err(error)),
            Some(Event::Finished(usage)) => {
                self.usage = Some(*usage);
                None
            }
            None => Some(Err(Error::Stopped)),
        })
    }

    /// The latest progress; the next change is an event again.
    fn take_progress(&mut self) -> PromptProgress {
        let link = &self.link;
        link.is_announced.swap(false, Ordering::AcqRel);
        let progress = PromptProgress {
            resumed: link.resumed.load(Ordering::Relaxed),
            computed: link.computed.load(Ordering::Relaxed),
            total: link.total,
        };
        *self.progress.insert(progress)
    }

    /// Has the request end after the pass that runs, with its usage after the tokens that
    /// are made by then. All that has been computed stays; dropping the stream leaves the
    /// pass in its middle, after which models with recurrent layers have to start over.
    pub fn stop(&self) {
        self.link.stops.store(true, Ordering::Release);
    }

    /// How many tokens of the prompt the engine had computed before; known from the first
    /// event on.
    pub fn resumed_tokens(&self) -> Option<usize> {
        self.progress.map(|progress| progress.resumed)
    }

    /// What the request has cost, once the stream is over.
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_ref()
    }
}

impl Stream for TokenStream {
    type Item = Result<Token, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            return match self.poll_next_event(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(StreamEvent::Prompt(_)))) => continue,
                Poll::Ready(Some(Ok(StreamEvent::Token(token)))) => Poll::Ready(Some(Ok(token))),
                Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => Poll::Ready(None),
            };
        }
    }
}
