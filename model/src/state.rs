//! What a sequence leaves behind for its next token: the keys and values of attention
//! layers, and the memories of recurrent ones.

use std::io::{self, Read, Write};

use crate::kv_cache::{KvCache, KvShape, KvType};
use crate::saved_numbers::{read_numbers, write_numbers};

pub use crate::saved_numbers::StateError;

/// What a layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateShape {
    /// Keys and values, position by position.
    Attention(KvShape),
    /// Floats that every token changes.
    Recurrent {
        /// Inputs of a short convolution that came before: `[taps - 1, channels]`.
        history: usize,
        /// Memories of the delta rule: `[heads, key_width, value_width]`.
        memory: usize,
    },
}

/// The state of one sequence, with the tokens it stands for.
#[derive(Debug)]
pub struct SequenceState {
    tokens: Vec<u32>,
    /// How many of them are only on their way through the layers.
    pending: usize,
    /// The first of them that lossy routing has changed, if any: what it and all after it
    /// have left behind is not the model's own.
    lossy_from: Option<usize>,
    context: usize,
    layers: Vec<LayerState>,
}

#[derive(Debug)]
enum LayerState {
    Attention(KvCache),
    Recurrent { history: Vec<f32>, memory: Vec<f32> },
}

impl SequenceState {
    /// The state before the first of up to `context` tokens, which come in batches of up
    /// to `chunk`.
    pub fn new(shapes: &[StateShape], context: usize, chunk: usize, kv_type: KvType) -> Self {
        let layer = |shape: &StateShape| match *shape {
            StateShape::Attention(shape) => {
                LayerState::Attention(KvCache::new(shape, context, chunk, kv_type))
            }
            StateShape::Recurrent { history, memory } => LayerState::Recurrent {
                history: vec![0.0; history],
                memory: vec![0.0; memory],
            },
        };
        Self {
            tokens: Vec::with_capacity(context),
            pending: 0,
            lossy_from: None,
            context,
            layers: shapes.iter().map(layer).collect(),
        }
    }

    /// The bytes of keys and values that [`SequenceState::new`] allocates.
    pub fn kv_bytes(shapes: &[StateShape], context: usize, chunk: usize, kv_type: KvType) -> u64 {
        let bytes = shapes.iter().map(|shape| match shape {
            StateShape::Attention(shape) => shape.required_bytes(context, chunk, kv_type),
            StateShape::Recurrent { .. } => 0,
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// The bytes that it allocates apart from those.
    pub fn recurrent_bytes(shapes: &[StateShape], context: usize) -> u64 {
        let floats = shapes.iter().map(|shape| match shape {
            StateShape::Attention(_) => 0,
            StateShape::Recurrent { history, memory } => history.saturating_add(*memory),
        });
        let floats = floats.fold(0, usize::saturating_add);
        (floats.saturating_add(context) as u64).saturating_mul(size_of::<f32>() as u64)
    }

    /// The tokens that it stands for.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.pending]
    }

    /// Goes back to the longest beginning that the sequence shares with `ids`, at least
    /// one short of all of them, and says how many tokens that is. Recurrent memories
    /// cannot go back, and a window has forgotten: then it starts over.
    pub fn resume(&mut self, ids: &[u32]) -> usize {
        self.abandon();
        let shared = self.tokens.iter().zip(ids).take_while(|(a, b)| a == b);
        let shared = shared.count().min(ids.len().saturating_sub(1));
        self.go_back_to(shared)
    }

    /// Keeps only what is the model's own, and says how many tokens that is: those before
    /// the first that lossy routing has changed, or none if there is no going back.
    pub fn keep_exact(&mut self) -> usize {
        self.go_back_to(self.lossy_from.unwrap_or(self.tokens.len()))
    }

    /// The first token that lossy routing has changed, if any.
    pub fn lossy_from(&self) -> Option<usize> {
        self.lossy_from
    }

    /// Of a state that has been read: the first token that lossy routing had changed.
    ///
    /// # Errors
    /// When there is no such token.
    pub fn set_lossy_from(&mut self, token: u64) -> Result<(), StateError> {
        let token = usize::try_from(token).ok();
        let token = token.filter(|&token| token < self.tokens.len());
        self.lossy_from = Some(token.ok_or(StateError::Damaged)?);
        Ok(())
    }

    /// Lossy routing changes the tokens that go through the layers now.
    pub(crate) fn mark_lossy(&mut self) {
        self.lossy_from.get_or_insert(self.tokens().len());
    }

    fn go_back_to(&mut self, tokens: usize) -> usize {
        if tokens < self.tokens.len() && !self.can_go_back_to(tokens) {
            self.clear();
        }
        self.truncate(tokens);
        self.tokens.len()
    }

    fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        self.lossy_from = self.lossy_from.filter(|&first| first < self.tokens.len());
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.truncate(0);
        self.pending = 0;
        for layer in &mut self.layers {
            match layer {
                LayerState::Attention(cache) => cache.clear(),
                LayerState::Recurrent { history, memory } => {
                    history.fill(0.0);
                    memory.fill(0.0);
                }
            }
        }
    }

    /// Tokens that go through the layers now.
    ///
    /// # Panics
    /// When they do not follow those before, or exceed the context.
    pub(crate) fn begin(&mut self, position: usize, tokens: &[u32]) {
        assert_eq!(self.pending, 0, "one batch at a time");
        assert_eq!(position, self.tokens.len(), "a batch follows the last");
        assert!(position + tokens.len() <= self.context, "context is full");
        self.tokens.extend_from_slice(tokens);
        self.pending = tokens.len();
    }

    /// The batch has gone through all layers.
    pub(crate) fn finish(&mut self) {
        self.pending = 0;
    }

    /// Whatever has begun will not be finished: back to before it.
    pub fn abandon(&mut self) {
        if self.pending == 0 {
            return;
        }
        let before = self.tokens.len() - self.pending;
        self.pending = 0;
        if self.can_go_back_to(before) {
            self.truncate(before);
        } else {
            self.clear();
        }
    }

    /// The keys and values of an attention layer.
    ///
    /// # Panics
    /// When the layer is another.
    pub(crate) fn cache_mut(&mut self, layer: usize) -> &mut KvCache {
        match &mut self.layers[layer] {
            LayerState::Attention(cache) => cache,
            LayerState::Recurrent { .. } => unreachable!("the program says which layer is which"),
        }
    }

    /// History and memory of a recurrent layer.
    ///
    /// # Panics
    /// When the layer is another.
    pub(crate) fn recurrent_mut(&mut self, layer: usize) -> (&mut [f32], &mut [f32]) {
        match &mut self.layers[layer] {
            LayerState::Recurrent { history, memory } => (history, memory),
            LayerState::Attention(_) => unreachable!("the program says which layer is which"),
        }
    }

    /// Writes the state; [`SequenceState::read`] takes it where shapes and KV type are
    /// the same.
    ///
    /// # Errors
    /// When `out` does not take it.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let tokens = self.tokens();
        out.write_all(&(tokens.len() as u64).to_le_bytes())?;
        write_numbers(tokens, |id| id.to_le_bytes(), out)?;
        for layer in &self.layers {
            match layer {
                LayerState::Attention(cache) => cache.write(tokens.len(), out)?,
                LayerState::Recurrent { history, memory } => {
                    write_numbers(history, |value| value.to_le_bytes(), out)?;
                    write_numbers(memory, |value| value.to_le_bytes(), out)?;
                }
            }
        }
        Ok(())
    }

    /// Replaces the state by one that was written. On an error it is empty.
    ///
    /// # Errors
    /// When it ends early, contradicts itself or is longer than the context.
    pub fn read(&mut self, input: &mut impl Read) -> Result<(), StateError> {
        self.clear();
        let outcome = self.read_layers(input);
        if outcome.is_err() {
            self.clear();
        }
        outcome
    }

    fn read_layers(&mut self, input: &mut impl Read) -> Result<(), StateError> {
        let mut count = [0; 8];
        input.read_exact(&mut count)?;
        let tokens = u64::from_le_bytes(count);
        let context = self.context;
        let fitting = usize::try_from(tokens)
            .ok()
            .filter(|&count| count <= context);
        let count = fitting.ok_or(StateError::TooLong { tokens, context })?;
        self.tokens.resize(count, 0);
        read_numbers(&mut self.tokens, u32::from_le_bytes, input)?;
        for layer in &mut self.layers {
            match layer {
                LayerState::Attention(cache) => cache.read(count, input)?,
                LayerState::Recurrent { history, memory } => {
                    read_numbers(history, f32::from_le_bytes, input)?;
                    read_numbers(memory, f32::from_le_bytes, input)?;
                }
            }
        }
        Ok(())
    }

    fn can_go_back_to(&self, positions: usize) -> bool {
        self.layers.iter().all(|layer| match layer {
            LayerState::Attention(cache) => cache.reaches(positions),
            LayerState::Recurrent { .. } => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use emel_kernels::{Kernels, KvSlice};

    use super::*;

    const CONTEXT: usize = 1000;
    const CHUNK: usize = 8;

    fn attention(window: Option<usize>) -> StateShape {
        StateShape::Attention(KvShape {
            kv_heads: 2,
            key_width: 3,
            value_width: Some(1),
            window,
        })
    }

    fn state(shapes: &[StateShape], kv_type: KvType) -> SequenceState {
        SequenceState::new(shapes, CONTEXT, CHUNK, kv_type)
    }

    /// Takes tokens in as a pass would, their ids as keys and values.
    fn feed(state: &mut SequenceState, ids: &[u32]) {
        for ids in ids.chunks(CHUNK) {
            let position = state.tokens().len();
            state.begin(position, ids);
            let repeated = |width: usize| -> Vec<f32> {
                let each = ids.iter().map(|&id| id as f32);
                each.flat_map(|id| std::iter::repeat_n(id, width)).collect()
            };
            for layer in &mut state.layers {
                match layer {
                    LayerState::Attention(cache) => {
                        let (keys, values) = (repeated(6), repeated(2));
                        cache.store(&Kernels::scalar(), position, ids.len(), [&keys, &values]);
                    }
                    LayerState::Recurrent { memory, .. } => memory[0] += ids[0] as f32,
                }
            }
            state.finish();
        }
    }

    /// The key of a position, if it is kept.
    fn key(state: &mut SequenceState, position: usize) -> Option<f32> {
        let cache = state.cache_mut(0);
        let KvSlice::F32(keys) = cache.view().keys else {
            return None;
        };
        let row = position.checked_sub(cache.first())?;
        Some(keys[row * 6])
    }

    #[test]
    fn a_window_keeps_what_is_looked_back_on_and_no_more() {
        let window = 100;
        let shapes = [attention(Some(window))];
        let mut state = state(&shapes, KvType::F32);
        let ids: Vec<u32> = (0..CONTEXT as u32).collect();
        for (count, ids) in ids.chunks(CHUNK).enumerate() {
            feed(&mut state, ids);
            let end = count * CHUNK + ids.len();
            for position in end.saturating_sub(window)..end {
                assert_eq!(key(&mut state, position), Some(position as f32));
            }
        }
        let bytes = SequenceState::kv_bytes(&shapes, CONTEXT, CHUNK, KvType::F32);
        let of_position = 2 * (3 + 1) * 4;
        assert!(bytes <= 2 * window as u64 * of_position);
        let longer = SequenceState::kv_bytes(&shapes, 1 << 30, CHUNK, KvType::F32);
        assert_eq!(longer, bytes, "bounded by the window");
    }

    #[test]
    fn a_head_in_blocks_takes_whole_ones() {
        for (key_width, value_width, blocks) in
            [(3, Some(1), 2), (64, Some(33), 4), (576, None, 18)]
        {
            let shape = StateShape::Attention(KvShape {
                kv_heads: 2,
                key_width,
                value_width,
                window: None,
            });
            let bytes = SequenceState::kv_bytes(&[shape], CONTEXT, CHUNK, KvType::Q8_0);
            assert_eq!(bytes, CONTEXT as u64 * 2 * blocks * 34);
        }
    }

    #[test]
    fn a_shared_beginning_is_resumed_and_one_token_left_to_compute() {
        let mut state = state(&[attention(None)], KvType::F32);
        let ids: Vec<u32> = (0..50).collect();
        feed(&mut state, &ids);
        assert_eq!(state.resume(&[0, 1, 2, 9]), 3);
        feed(&mut state, &[9]);
        assert_eq!(key(&mut state, 3), Some(9.0));
        assert_eq!(state.resume(&[0, 1, 2, 9]), 3, "one is left");
        assert_eq!(state.resume(&[7]), 0);
    }

    #[test]
    fn a_window_that_has_moved_on_starts_over() {
        let mut state = state(&[attention(Some(100))], KvType::F32);
        let ids: Vec<u32> = (0..CONTEXT as u32).collect();
        feed(&mut state, &ids);
        assert_eq!(state.resume(&ids[..960]), 959, "still there");
        feed(&mut state, &ids[959..]);
        assert_eq!(state.resume(&ids[..200]), 0);
        feed(&mut state, &ids[..20]);
        assert_eq!(key(&mut state, 0), Some(0.0));
    }

    #[test]
    fn recurrent_layers_resume_as_a_whole_or_not_at_all() {
        let shape = StateShape::Recurrent {
            history: 4,
            memory: 2,
        };
        let mut state = state(&[shape], KvType::F32);
        feed(&mut state, &[1, 2, 3]);
        assert_eq!(state.resume(&[1, 2, 3, 4]), 3);
        assert_eq!(state.recurrent_mut(0).1[0], 1.0);
        assert_eq!(state.resume(&[1, 2, 3]), 0, "a token has to be left");
        assert_eq!(state.recurrent_mut(0).1[0], 0.0);
    }

    #[test]
    fn what_lossy_routing_has_changed_is_told_from_what_is_the_models_own() {
        let mut state = state(&[attention(None)], KvType::F32);
        feed(&mut state, &[1, 2, 3]);
        state.begin(3, &[4]);
        state.mark_lossy();
        state.finish();
        feed(&mut state, &[5]);
        assert_eq!(state.lossy_from(), Some(3));
        assert_eq!(state.resume(&[1, 2, 3, 4, 6]), 4, "asked for as it is");
        assert_eq!(state.lossy_from(), Some(3));
        assert_eq!(state.keep_exact(), 3);
        assert_eq!(state.lossy_from(), None);
        assert_eq!(state.keep_exact(), 3);

        state.begin(3, &[4]);
        state.mark_lossy();
        state.abandon();
        assert_eq!(state.lossy_from(), None, "it was never computed");
        assert!(state.set_lossy_from(3).is_err(), "there is no such token");
    }

    #[test]
    fn a_batch_that_is_not_finished_leaves_no_trace() {
        let shape = StateShape::Recurrent {
            history: 0,
            memory: 1,
        };
        for (shape, kept) in [(attention(Some(100)), 500), (shape, 0)] {
            let mut state = state(&[shape], KvType::F32);
            let ids: Vec<u32> = (0..500).collect();
            feed(&mut state, &ids);
            state.begin(500, &[1, 2]);
            assert_eq!(state.tokens().len(), 500);
            state.abandon();
            assert_eq!(state.tokens().len(), kept);
        }
    }

    #[test]
    fn a_written_state_is_read_with_another_context_and_chunk() {
        let shapes = [
            attention(Some(100)),
            attention(None),
            StateShape::Recurrent {
                history: 4,
                memory: 2,
            },
        ];
        let ids: Vec<u32> = (0..700).collect();
        for kv_type in KvType::ALL {
            let mut saved = state(&shapes, kv_type);
            feed(&mut saved, &ids);
            let mut bytes = Vec::new();
            saved.write(&mut bytes).expect("memory takes it");
            let mut restored = SequenceState::new(&shapes, 701, 64, kv_type);
            restored
                .read(&mut bytes.as_slice())
                .expect("the same shapes");
            assert_eq!(restored.tokens(), ids);
            let mut again = Vec::new();
            restored.write(&mut again).expect("memory takes it");
            assert!(again == bytes, "the same state");
            if kv_type == KvType::F32 {
                assert_eq!(key(&mut restored, 650), Some(650.0));
            }
            assert_eq!(restored.recurrent_mut(2).1, saved.recurrent_mut(2).1);
        }
    }

    #[test]
    fn a_state_that_is_cut_off_or_too_long_or_contradicts_itself_is_refused() {
        let shapes = [attention(Some(100))];
        let mut saved = state(&shapes, KvType::F32);
        feed(&mut saved, &(0..700).collect::<Vec<u32>>());
        let mut bytes = Vec::new();
        saved.write(&mut bytes).expect("memory takes it");
        let mut restored = state(&shapes, KvType::F32);
        for length in [0, 7, 100, bytes.len() - 1] {
            let refused = restored.read(&mut &bytes[..length]);
            assert!(matches!(refused, Err(StateError::Read(_))), "{length}");
            assert!(restored.tokens().is_empty());
        }
        let mut short = SequenceState::new(&shapes, 699, CHUNK, KvType::F32);
        let refused = short.read(&mut bytes.as_slice());
        assert!(matches!(
            refused,
            Err(StateError::TooLong { tokens: 700, .. })
        ));
        let first = 8 + 700 * 4;
        for wrong in [1_u64, 640 + 64, 0, u64::MAX] {
            bytes[first..first + 8].copy_from_slice(&wrong.to_le_bytes());
            let refused = restored.read(&mut bytes.as_slice());
            assert!(matches!(refused, Err(StateError::Damaged)), "{wrong}");
        }
    }
}
