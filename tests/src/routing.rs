//! Real routing, as `tests/fixtures/moe/README.md` describes it.

use std::io::Read;

use emel::internals::experts::MixtureShape;
use emel::internals::experts::trace::Trace;
use flate2::read::ZlibDecoder;

use crate::fixtures::fixture;

/// The model that all of it is from.
pub const SHAPE: MixtureShape = MixtureShape {
    layers: 8,
    experts: 32,
    used: 4,
};
/// Experts of the next layer that its router was asked for.
pub const LOOK_AHEAD: usize = 12;
/// Tokens of each context.
const CONTEXT: usize = 256;

/// The routing of a text, with `guesses` guesses: none, or [`LOOK_AHEAD`].
///
/// # Panics
/// When there is no such fixture.
pub fn trace(text: &str, guesses: usize) -> Trace {
    let experts = bytes(&format!("{text}.routing.zz"));
    let positions = experts.len() / (SHAPE.layers * SHAPE.used);
    let ahead = match guesses {
        0 => Vec::new(),
        _ => bytes(&format!("{text}.look-ahead.zz")),
    };
    assert_eq!(ahead.len(), (SHAPE.layers - 1) * positions * guesses);
    let mut trace = Trace::new(SHAPE, guesses, 0).expect("a sane shape");
    for position in 0..positions {
        // Files are [layers, positions, ranks].
        let of_layer = |values: &[u8], layer: usize, width: usize| {
            let row = &values[(layer * positions + position) * width..][..width];
            row.iter().map(|&id| u16::from(id)).collect::<Vec<u16>>()
        };
        let choices = (0..SHAPE.layers).flat_map(|layer| of_layer(&experts, layer, SHAPE.used));
        let guessed = (1..SHAPE.layers).flat_map(|layer| of_layer(&ahead, layer - 1, guesses));
        trace.push((position % CONTEXT) as u32, choices, guessed);
    }
    trace
}

fn bytes(name: &str) -> Vec<u8> {
    let path = fixture("moe").join(name);
    let file =
        std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    ZlibDecoder::new(file)
        .read_to_end(&mut bytes)
        .expect("a whole file");
    bytes
}
