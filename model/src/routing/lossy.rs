//! Lossy routing: fewer experts have to be read, and the answer is no longer the model's.
//!
//! Both rules look at which experts are in memory, so that what a token goes to depends on
//! what came before it and on how much memory there is.

use super::{Choice, Router, Routing, best, weigh};

/// How far a token may leave its router's choice for experts that are in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossyRouting {
    /// Prefers experts that are in memory.
    pub cache_routing: Option<CacheRouting>,
    /// Experts of a layer, at least 1, that are read for a token: of those that are not in
    /// memory the best. The others are left out.
    pub expert_budget: Option<usize>,
}

/// Cache-aware routing: the best experts stay, the others come from those in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRouting {
    /// The router's best experts, which a token goes to wherever they are; 1 to as many as
    /// it uses.
    pub kept: usize,
    /// The other places are filled from the experts in memory among this many of the
    /// router's best; with true choices again where these are too few.
    pub among: usize,
}

/// What a token's choice has lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoutingLoss {
    /// Experts that took the place of true choices.
    pub substituted: usize,
    /// True choices, or what took their place, that were left out.
    pub dropped: usize,
}

impl LossyRouting {
    /// Whether any rule is on.
    pub fn is_on(&self) -> bool {
        self.cache_routing.is_some() || self.expert_budget.is_some()
    }
}

impl RoutingLoss {
    /// Whether the choice is still the router's.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Routing {
    /// Chooses anew for the only token of a batch that has just been routed, by `rule`.
    /// The weights are those that the router gives to the chosen set: they sum to one again
    /// if it makes them, and else stay as they are.
    ///
    /// # Panics
    /// When the batch has several tokens.
    pub fn relax(
        &mut self,
        router: &Router,
        rule: &LossyRouting,
        is_in_memory: impl Fn(usize) -> bool,
    ) -> RoutingLoss {
        assert_eq!(self.choices.len(), router.used, "one token, routed exactly");
        let mut loss = RoutingLoss::default();
        if self
            .choices
            .iter()
            .all(|choice| is_in_memory(choice.expert))
        {
            return loss;
        }
        let (kept, among) = match rule.cache_routing {
            Some(CacheRouting { kept, among }) => (kept, among.min(router.experts)),
            None => (router.used, router.used),
        };
        best(&self.scores, among.max(router.used), &mut self.order);
        // Groups that do not take part have no finite score.
        let may_substitute = |rank: usize, expert: usize| {
            rank < router.used || self.scores[expert] > f32::NEG_INFINITY
        };
        let others = self.order[..among].iter().enumerate().skip(kept);
        let in_memory = others
            .filter(|&(rank, &expert)| may_substitute(rank, expert) && is_in_memory(expert))
            .count();
        let mut from_memory = in_memory.min(router.used.saturating_sub(kept));
        let mut to_read = router.used - kept - from_memory;
        let mut may_read = rule.expert_budget.unwrap_or(router.used);
        self.choices.clear();
        for (rank, &expert) in self.order[..among].iter().enumerate() {
            let is_here = is_in_memory(expert);
            if rank >= kept {
                let places = if is_here {
                    &mut from_memory
                } else {
                    &mut to_read
                };
                if *places == 0 || !may_substitute(rank, expert) {
                    continue;
                }
                *places -= 1;
            }
            loss.substituted += usize::from(rank >= router.used);
            if !is_here && may_read == 0 {
                loss.dropped += 1;
                continue;
            }
            may_read -= usize::from(!is_here);
            let weight = self.shares[expert];
            self.choices.push(Choice { expert, weight });
        }
        weigh(router, &mut self.choices);
        self.used = self.choices.len();
        self.group_by_expert();
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ExpertGroups, Gating};
    use super::*;

    const ROUTER: Router = Router {
        experts: 8,
        used: 4,
        gating: Gating::Softmax,
        bias: None,
        groups: None,
        normalises: true,
        scale: 1.0,
    };
    /// Expert 0 is the best, 7 the worst.
    const LOGITS: [f32; 8] = [4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5];

    fn routed(router: &Router) -> Routing {
        let mut routing = Routing::new(1, router.experts, router.used);
        routing.route(router, &LOGITS, None);
        routing
    }

    fn relaxed(router: &Router, rule: LossyRouting, here: &[usize]) -> (Routing, RoutingLoss) {
        let mut routing = routed(router);
        let loss = routing.relax(router, &rule, |expert| here.contains(&expert));
        (routing, loss)
    }

    fn experts(routing: &Routing) -> Vec<usize> {
        let choices = routing.choices(0).iter();
        choices.map(|choice| choice.expert).collect()
    }

    fn cache_routing(kept: usize, among: usize) -> LossyRouting {
        LossyRouting {
            cache_routing: Some(CacheRouting { kept, among }),
            expert_budget: None,
        }
    }

    fn expert_budget(experts: usize) -> LossyRouting {
        LossyRouting {
            cache_routing: None,
            expert_budget: Some(experts),
        }
    }

    fn loss(substituted: usize, dropped: usize) -> RoutingLoss {
        RoutingLoss {
            substituted,
            dropped,
        }
    }

    #[test]
    fn the_best_stay_and_the_others_come_from_memory() {
        let (routing, found) = relaxed(&ROUTER, cache_routing(2, 6), &[3, 5, 7]);
        assert_eq!(experts(&routing), [0, 1, 3, 5]);
        assert_eq!(found, loss(1, 0));
        assert_eq!(routing.rows(0), [0, 1, 2, 3]);
    }

    #[test]
    fn true_choices_fill_what_memory_leaves() {
        let (routing, found) = relaxed(&ROUTER, cache_routing(1, 6), &[4]);
        assert_eq!(experts(&routing), [0, 1, 2, 4]);
        assert_eq!(found, loss(1, 0));
        let (routing, found) = relaxed(&ROUTER, cache_routing(1, 8), &[]);
        assert_eq!(experts(&routing), [0, 1, 2, 3]);
        assert!(found.is_none());
    }

    #[test]
    fn the_best_of_the_missing_are_read_and_the_others_left_out() {
        let (routing, found) = relaxed(&ROUTER, expert_budget(1), &[1]);
        assert_eq!(experts(&routing), [0, 1]);
        assert_eq!(found, loss(0, 2));
        assert_eq!(routing.choices_per_token(), 2);
        assert_eq!(routing.tokens(), [0, 0]);
        let (routing, _) = relaxed(&ROUTER, expert_budget(1), &[]);
        assert_eq!(experts(&routing), [0], "a token goes to some expert");
    }

    #[test]
    fn both_rules_drop_only_what_memory_cannot_replace() {
        let both = LossyRouting {
            expert_budget: Some(2),
            ..cache_routing(1, 5)
        };
        let (routing, found) = relaxed(&ROUTER, both, &[4]);
        assert_eq!(experts(&routing), [0, 1, 4]);
        assert_eq!(found, loss(1, 1));
    }

    #[test]
    fn weights_are_those_the_router_gives_to_the_chosen_set() {
        let of_softmax = |logit: f32| logit.exp() / LOGITS.map(f32::exp).iter().sum::<f32>();
        for gating in [Gating::Softmax, Gating::SoftmaxOfChosen, Gating::Sigmoid] {
            let router = Router {
                gating,
                scale: 2.0,
                ..ROUTER
            };
            let (routing, _) = relaxed(&router, expert_budget(1), &[2]);
            let sum: f32 = routing.choices(0).iter().map(|choice| choice.weight).sum();
            assert!((sum - 2.0).abs() < 1e-5, "{gating:?}: {sum}");
        }
        let as_it_is = Router {
            normalises: false,
            ..ROUTER
        };
        let (routing, _) = relaxed(&as_it_is, expert_budget(1), &[2]);
        let [first, second] = routing.choices(0) else {
            panic!("two experts");
        };
        assert!((first.weight - of_softmax(4.0)).abs() < 1e-6);
        assert!((second.weight - of_softmax(3.0)).abs() < 1e-6);
    }

    #[test]
    fn a_rule_that_asks_for_nothing_leaves_the_bits() {
        let exact = routed(&ROUTER);
        for rule in [cache_routing(4, 8), cache_routing(1, 4), expert_budget(4)] {
            for here in [&[][..], &[6, 7], &[0, 1, 2, 3]] {
                let (routing, found) = relaxed(&ROUTER, rule, here);
                assert!(found.is_none(), "{rule:?}, {here:?}");
                assert_eq!(routing.choices(0), exact.choices(0));
                assert_eq!(routing.rows(0), exact.rows(0));
            }
        }
    }

    #[test]
    fn experts_of_groups_that_do_not_take_part_are_no_substitutes() {
        let grouped = Router {
            groups: Some(ExpertGroups { count: 2, used: 1 }),
            used: 3,
            ..ROUTER
        };
        let (routing, found) = relaxed(&grouped, cache_routing(1, 8), &[3, 4, 5, 6, 7]);
        assert_eq!(experts(&routing), [0, 1, 3]);
        assert_eq!(found, loss(1, 0));
    }

    #[test]
    fn logits_that_are_no_numbers_do_no_harm() {
        let mut routing = Routing::new(1, 8, 4);
        routing.route(&ROUTER, &[f32::NAN; 8], None);
        routing.relax(&ROUTER, &cache_routing(1, 8), |expert| expert > 5);
        assert_eq!(routing.choices(0).len(), 4);
    }

    #[test]
    fn relaxing_allocates_nothing_new() {
        let mut routing = routed(&ROUTER);
        let before = [routing.order.capacity(), routing.choices.capacity()];
        routing.relax(&ROUTER, &cache_routing(1, 8), |expert| expert > 4);
        let after = [routing.order.capacity(), routing.choices.capacity()];
        assert_eq!(before, after);
    }
}
