//! Routing: which experts each token goes to, and how much each counts.
//!
//! The result is a plain value that is known before any expert's weights are needed, so
//! that whoever brings the weights can look at it first.

mod lossy;

pub use lossy::{CacheRouting, LossyRouting, RoutingLoss};

use std::cmp::Ordering;
use std::ops::Range;

/// How a router's logits become the experts' shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts (Shazeer et al., 2017).
    Softmax,
    /// The logistic function of each by itself (DeepSeek-V3, 2024).
    Sigmoid,
    /// Softmax over those that were chosen (gpt-oss, 2025).
    SoftmaxOfChosen,
}

/// Experts in groups, of which only some take part (DeepSeek-V3, 2024). A group is as
/// good as its two best experts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups; divides the number of experts.
    pub count: usize,
    /// Groups that take part.
    pub used: usize,
}

/// A router: what is data about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// Number of experts.
    pub experts: usize,
    /// Experts that a token goes to.
    pub used: usize,
    /// How logits become shares.
    pub gating: Gating,
    /// Index of the resident weight that is added to the shares for the choice alone.
    pub bias: Option<usize>,
    /// Groups of experts.
    pub groups: Option<ExpertGroups>,
    /// Whether the chosen shares are made to sum to one.
    pub normalises: bool,
    /// What they are multiplied with at last.
    pub scale: f32,
}

/// The least sum that shares are divided by, as the published models have it: the
/// smallest normal number of half precision.
const SHARE_SUM_MIN: f32 = 6.103_515_6e-5;

/// An expert that a token goes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Its index.
    pub expert: usize,
    /// How much its answer counts.
    pub weight: f32,
}

/// Where the tokens of a batch go. Their choices, sorted by expert, are numbered as rows.
#[derive(Debug, Default)]
pub struct Routing {
    experts: usize,
    used: usize,
    /// `[tokens, used]`, the best first.
    choices: Vec<Choice>,
    /// The row of each choice.
    rows: Vec<usize>,
    /// The token of each row.
    tokens: Vec<usize>,
    /// The first row of each expert, and the end of the last.
    starts: Vec<usize>,
    /// Of one token: the experts' shares, what they are chosen by, and their order.
    shares: Vec<f32>,
    scores: Vec<f32>,
    order: Vec<usize>,
}

impl Routing {
    /// Room for `tokens` tokens that go to up to `used` of up to `experts` experts.
    pub fn new(tokens: usize, experts: usize, used: usize) -> Self {
        Self {
            choices: Vec::with_capacity(tokens * used),
            rows: Vec::with_capacity(tokens * used),
            tokens: Vec::with_capacity(tokens * used),
            starts: Vec::with_capacity(experts + 1),
            shares: Vec::with_capacity(experts),
            scores: Vec::with_capacity(experts),
            order: Vec::with_capacity(experts),
            ..Self::default()
        }
    }

    /// The bytes that [`Routing::new`] allocates.
    pub fn required_bytes(tokens: usize, experts: usize, used: usize) -> usize {
        let per_choice = size_of::<Choice>() + 2 * size_of::<usize>();
        let per_expert = 2 * size_of::<usize>() + 2 * size_of::<f32>();
        let choices = tokens.saturating_mul(used).saturating_mul(per_choice);
        choices
            .saturating_add(experts.saturating_mul(per_expert))
            .saturating_add(size_of::<usize>())
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// How many experts a token goes to.
    pub fn choices_per_token(&self) -> usize {
        self.used
    }

    /// The choices of a token, the best first.
    pub fn choices(&self, token: usize) -> &[Choice] {
        &self.choices[token * self.used..][..self.used]
    }

    /// The rows of a token, in the order of its choices.
    pub fn rows(&self, token: usize) -> &[usize] {
        &self.rows[token * self.used..][..self.used]
    }

    /// The token of each row; rows are in the order of the experts.
    pub fn tokens(&self) -> &[usize] {
        &self.tokens
    }

    /// The rows of the tokens that go to an expert; none if no token does.
    pub fn rows_of_expert(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }

    /// Routes the tokens with these logits, `[tokens, experts]`; `bias` is the router's.
    pub fn route(&mut self, router: &Router, logits: &[f32], bias: Option<&[f32]>) {
        (self.experts, self.used) = (router.experts, router.used);
        self.choices.clear();
        for logits in logits.chunks_exact(router.experts) {
            self.choose(router, logits, bias);
        }
        self.group_by_expert();
    }

    /// Appends the choices of one token.
    fn choose(&mut self, router: &Router, logits: &[f32], bias: Option<&[f32]>) {
        self.shares.clear();
        self.shares.extend_from_slice(logits);
        match router.gating {
            Gating::Softmax => softmax(&mut self.shares, |share| share),
            Gating::Sigmoid => self
                .shares
                .iter_mut()
                .for_each(|share| *share = 1.0 / (1.0 + (-*share).exp())),
            Gating::SoftmaxOfChosen => {}
        }
        self.scores.clear();
        self.scores.extend_from_slice(&self.shares);
        if let Some(bias) = bias {
            for (score, bias) in self.scores.iter_mut().zip(bias) {
                *score += bias;
            }
        }
        if let Some(groups) = router.groups {
            keep_best_groups(&mut self.scores, groups, &mut self.order);
        }
        best(&self.scores, router.used, &mut self.order);

        let first = self.choices.len();
        let chosen = self.order[..router.used].iter().map(|&expert| Choice {
            expert,
            weight: self.shares[expert],
        });
        self.choices.extend(chosen);
        weigh(router, &mut self.choices[first..]);
    }

    /// Numbers the choices, expert by expert, and each expert's by token.
    fn group_by_expert(&mut self) {
        self.starts.clear();
        self.starts.resize(self.experts + 1, 0);
        for choice in &self.choices {
            self.starts[choice.expert + 1] += 1;
        }
        for expert in 0..self.experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        // The start of an expert moves on with each of its rows, to the start of the next.
        self.rows.clear();
        self.tokens.clear();
        self.tokens.resize(self.choices.len(), 0);
        for (index, choice) in self.choices.iter().enumerate() {
            let row = self.starts[choice.expert];
            self.starts[choice.expert] += 1;
            self.rows.push(row);
            self.tokens[row] = index / self.used;
        }
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }
}

/// Turns the shares of one token's choices into their weights.
fn weigh(router: &Router, choices: &mut [Choice]) {
    if router.gating == Gating::SoftmaxOfChosen {
        softmax(choices, |choice| &mut choice.weight);
    }
    if router.normalises {
        let total: f32 = choices.iter().map(|choice| choice.weight).sum();
        for choice in &mut *choices {
            choice.weight /= total.max(SHARE_SUM_MIN);
        }
    }
    for choice in choices {
        choice.weight *= router.scale;
    }
}

/// Softmax over one value of each item.
fn softmax<T>(items: &mut [T], value: impl Fn(&mut T) -> &mut f32) {
    let greatest = items
        .iter_mut()
        .fold(f32::NEG_INFINITY, |most, item| most.max(*value(item)));
    for item in &mut *items {
        let value = value(item);
        *value = (*value - greatest).exp();
    }
    let total: f32 = items.iter_mut().map(|item| *value(item)).sum();
    for item in items {
        *value(item) /= total;
    }
}

/// Puts the indices of the `count` greatest scores first, the best of them at the front;
/// of equal ones the first.
fn best(scores: &[f32], count: usize, order: &mut Vec<usize>) {
    let by_score = |&a: &usize, &b: &usize| -> Ordering {
        scores[b].total_cmp(&scores[a]).then_with(|| a.cmp(&b))
    };
    order.clear();
    order.extend(0..scores.len());
    if count < order.len() {
        order.select_nth_unstable_by(count, by_score);
    }
    order[..count].sort_unstable_by(by_score);
}

/// Takes all experts outside the best groups out of the running.
fn keep_best_groups(scores: &mut [f32], groups: ExpertGroups, order: &mut Vec<usize>) {
    let size = scores.len() / groups.count;
    let value = |group: usize| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &score in &scores[group * size..][..size] {
            if score > first {
                (first, second) = (score, first);
            } else if score > second {
                second = score;
            }
        }
        first + if size > 1 { second } else { 0.0 }
    };
    order.clear();
    order.extend(0..groups.count);
    order.sort_unstable_by(|&a, &b| value(b).total_cmp(&value(a)).then_with(|| a.cmp(&b)));
    for &group in &order[groups.used..] {
        scores[group * size..][..size].fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(experts: usize, used: usize) -> Router {
        Router {
            experts,
            used,
            gating: Gating::Softmax,
            bias: None,
            groups: None,
            normalises: false,
            scale: 1.0,
        }
    }

    fn routed(router: &Router, logits: &[f32], bias: Option<&[f32]>) -> Routing {
        let tokens = logits.len() / router.experts;
        let mut routing = Routing::new(tokens, router.experts, router.used);
        routing.route(router, logits, bias);
        routing
    }

    fn experts(routing: &Routing, token: usize) -> Vec<usize> {
        let choices = routing.choices(token).iter();
        choices.map(|choice| choice.expert).collect()
    }

    #[test]
    fn rows_are_grouped_by_expert_and_sorted_by_token() {
        let logits = [0.0, 3.0, 2.0, 1.0, 3.0, 0.0, 2.0, 1.0, 0.0, 3.0, 1.0, 2.0];
        let routing = routed(&router(4, 2), &logits, None);
        assert_eq!(routing.tokens(), [1, 0, 2, 0, 1, 2]);
        let rows: Vec<_> = (0..4).map(|e| routing.rows_of_expert(e)).collect();
        assert_eq!(rows, [0..1, 1..3, 3..5, 5..6]);
        assert_eq!(routing.rows(0), [1, 3]);
        assert_eq!(routing.rows(2), [2, 5]);
    }

    #[test]
    fn a_bias_changes_who_is_chosen_and_not_the_weight() {
        let sigmoid = Router {
            gating: Gating::Sigmoid,
            ..router(3, 1)
        };
        let routing = routed(&sigmoid, &[0.0, 1.0, 2.0], Some(&[5.0, 0.0, 0.0]));
        let expected = Choice {
            expert: 0,
            weight: 0.5,
        };
        assert_eq!(routing.choices(0), [expected]);
    }

    #[test]
    fn only_the_best_groups_take_part() {
        let grouped = Router {
            groups: Some(ExpertGroups { count: 3, used: 1 }),
            ..router(6, 2)
        };
        // The best expert is in the first group; the best two together in the second.
        let routing = routed(&grouped, &[9.0, -9.0, 8.9, 8.8, 0.0, 0.0], None);
        assert_eq!(experts(&routing, 0), [2, 3]);
    }

    #[test]
    fn normalised_weights_sum_to_the_scale() {
        for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxOfChosen] {
            let scaled = Router {
                gating,
                normalises: true,
                scale: 2.5,
                ..router(5, 3)
            };
            let routing = routed(&scaled, &[0.3, -1.0, 2.0, 0.1, 0.7], None);
            let sum: f32 = routing.choices(0).iter().map(|choice| choice.weight).sum();
            assert!((sum - 2.5).abs() < 1e-6, "{gating:?}: {sum}");
            assert_eq!(experts(&routing, 0), [2, 4, 0], "{gating:?}");
        }
    }

    #[test]
    fn equal_scores_go_to_the_first_and_no_number_does_no_harm() {
        let routing = routed(&router(4, 2), &[1.0; 4], None);
        assert_eq!(experts(&routing, 0), [0, 1]);
        let routing = routed(&router(4, 2), &[f32::NAN; 4], None);
        assert_eq!(routing.choices(0).len(), 2);
    }

    #[test]
    fn routing_again_allocates_nothing_new() {
        let mut routing = Routing::new(2, 4, 2);
        let before = [routing.rows.capacity(), routing.starts.capacity()];
        routing.route(
            &router(4, 2),
            &[0.0, 3.0, 2.0, 1.0, 3.0, 0.0, 2.0, 1.0],
            None,
        );
        routing.route(&router(4, 1), &[0.0, 3.0, 2.0, 1.0], None);
        assert_eq!(before, [routing.rows.capacity(), routing.starts.capacity()]);
    }
}
