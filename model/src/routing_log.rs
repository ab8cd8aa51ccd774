//! What the routers of a pass have chosen and guessed, for whoever looks at it afterwards.

use crate::routing::{Choice, Routing};

/// The routing of the tokens of the last pass.
#[derive(Debug)]
pub struct RoutingLog {
    layers: usize,
    tokens: usize,
    /// Of each token: experts chosen, and experts guessed.
    widths: [usize; 2],
    /// `[layers, tokens, used]`.
    choices: Vec<Choice>,
    /// `[layers - 1, tokens, guesses]`, from the second layer on.
    guesses: Vec<Choice>,
}

impl RoutingLog {
    /// Room for `tokens` tokens that go through `layers` mixtures, each to `used` experts,
    /// with `guesses` guesses.
    pub fn new(tokens: usize, layers: usize, [used, guesses]: [usize; 2]) -> Self {
        Self {
            layers,
            tokens: 0,
            widths: [used, guesses],
            choices: Vec::with_capacity(tokens * layers * used),
            guesses: Vec::with_capacity(tokens * layers * guesses),
        }
    }

    /// The bytes that [`RoutingLog::new`] allocates.
    pub fn required_bytes(tokens: usize, layers: usize, [used, guesses]: [usize; 2]) -> usize {
        let per_token = layers.saturating_mul(used.saturating_add(guesses));
        let choices = tokens.saturating_mul(per_token);
        choices.saturating_mul(size_of::<Choice>())
    }

    /// Mixtures of experts in the model.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// The choices of a token of the pass in a layer, the best first.
    pub fn choices(&self, layer: usize, token: usize) -> &[Choice] {
        row(&self.choices, self.widths[0], layer * self.tokens + token)
    }

    /// What was guessed for it one layer before, the likeliest first; nothing for the
    /// first layer.
    pub fn guesses(&self, layer: usize, token: usize) -> &[Choice] {
        match layer.checked_sub(1) {
            Some(before) => row(&self.guesses, self.widths[1], before * self.tokens + token),
            None => &[],
        }
    }

    /// A pass of so many tokens begins.
    pub(crate) fn begin(&mut self, tokens: usize) {
        self.tokens = tokens;
        self.choices.clear();
        self.guesses.clear();
    }

    /// The next layer has been routed.
    pub(crate) fn add(&mut self, routing: &Routing) {
        let tokens = 0..self.tokens;
        self.choices
            .extend(tokens.flat_map(|token| routing.choices(token)));
    }

    /// The layer after it has been guessed.
    pub(crate) fn add_guesses(&mut self, routing: &Routing) {
        let tokens = 0..self.tokens;
        self.guesses
            .extend(tokens.flat_map(|token| routing.choices(token)));
    }
}

fn row(values: &[Choice], width: usize, index: usize) -> &[Choice] {
    &values[index * width..][..width]
}
