//! What the sequences that run have of the positions before: keys and values, or recurrent states.
//!
//! A layer of attention has one array of keys and one of values, `[1, kv heads, capacity, head
//! dim]`, of which the first `length` positions count. A step writes its positions into them;
//! MLX does that without a copy as long as nothing else holds the old array, which is why the
//! cache gives its handle away before each update and why readers get views that die with the step.
//! Trimming only moves the length: what lies behind is overwritten later.
//!
//! A gated delta net has a state of the last position alone: such a sequence goes on or starts anew,
//! but cannot go back. That holds on every rank of a model that has such layers, whatever it holds.

use std::collections::HashMap;

use daisy_proto::{Row, SeqId};
use mlx_rs::{Array, Dtype, ops};

use super::error::EngineError;
use super::ffi;

/// The caches of all sequences of one rank.
pub(super) struct Caches {
    layers: Vec<LayerShape>,
    /// Whether some layer of the model, here or elsewhere, has a recurrent state.
    recurrent: bool,
    sequences: HashMap<SeqId, SequenceCache>,
}

/// What a layer keeps.
#[derive(Debug, Clone, Copy)]
pub(super) enum LayerShape {
    KeysValues(KeysValuesShape),
    Recurrent,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct KeysValuesShape {
    pub(super) kv_heads: i32,
    pub(super) head_dim: i32,
    pub(super) dtype: Dtype,
}

struct SequenceCache {
    length: u32,
    layers: Vec<LayerCache>,
}

enum LayerCache {
    KeysValues(KeysValues),
    Recurrent(Recurrent),
}

/// One layer's keys and values of one sequence; empty until its first step.
pub(super) struct KeysValues {
    shape: KeysValuesShape,
    arrays: Option<[Array; 2]>,
    capacity: i32,
}

/// One gated delta net's state of one sequence: what its convolution still sees, and its matrices.
/// None before the first position.
pub(super) struct Recurrent {
    pub(super) arrays: Option<[Array; 2]>,
}

impl Caches {
    pub(super) fn new(layers: Vec<LayerShape>, recurrent: bool) -> Self {
        Self { layers, recurrent, sequences: HashMap::new() }
    }

    /// Whether `row` continues what is cached; changes nothing.
    pub(super) fn check(&self, row: &Row) -> Result<(), EngineError> {
        let Row { seq, first, .. } = *row;
        let cached = self.length(seq);
        if first > cached {
            return Err(EngineError::Gap { seq, first, cached });
        }
        if self.recurrent && first != 0 && first != cached {
            return Err(EngineError::Rewind { seq, first, cached });
        }
        Ok(())
    }

    /// Trims to `row.first` and counts the row's positions in; what they keep follows by layer.
    pub(super) fn begin(&mut self, row: &Row) {
        let layers = &self.layers;
        let sequence = self.sequences.entry(row.seq).or_insert_with(|| SequenceCache {
            length: 0,
            layers: layers.iter().map(LayerCache::new).collect(),
        });
        if row.first == 0 {
            for layer in &mut sequence.layers {
                if let LayerCache::Recurrent(recurrent) = layer {
                    recurrent.arrays = None;
                }
            }
        }
        sequence.length = row.first + row.count;
    }

    pub(super) fn keys_values(
        &mut self,
        seq: SeqId,
        layer: usize,
    ) -> Result<&mut KeysValues, EngineError> {
        match self.layer(seq, layer)? {
            LayerCache::KeysValues(cached) => Ok(cached),
            LayerCache::Recurrent(_) => Err(EngineError::Internal("attention without its cache")),
        }
    }

    pub(super) fn recurrent(
        &mut self,
        seq: SeqId,
        layer: usize,
    ) -> Result<&mut Recurrent, EngineError> {
        match self.layer(seq, layer)? {
            LayerCache::Recurrent(cached) => Ok(cached),
            LayerCache::KeysValues(_) => {
                Err(EngineError::Internal("a delta net without its state"))
            }
        }
    }

    fn layer(&mut self, seq: SeqId, layer: usize) -> Result<&mut LayerCache, EngineError> {
        let sequence = self.sequences.get_mut(&seq).and_then(|found| found.layers.get_mut(layer));
        sequence.ok_or(EngineError::Internal("a row's sequence has no cache"))
    }

    /// The arrays that `rows` wrote to.
    pub(super) fn updated<'a>(&'a self, rows: &'a [Row]) -> impl Iterator<Item = &'a Array> {
        rows.iter()
            .filter_map(|row| self.sequences.get(&row.seq))
            .flat_map(|sequence| &sequence.layers)
            .filter_map(LayerCache::arrays)
            .flatten()
    }

    pub(super) fn length(&self, seq: SeqId) -> u32 {
        self.sequences.get(&seq).map_or(0, |sequence| sequence.length)
    }

    pub(super) fn release(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }

    /// Pretends that `seq` has so many positions, all zero.
    #[cfg(test)]
    pub(super) fn fill(&mut self, seq: SeqId, length: u32) -> Result<(), EngineError> {
        self.begin(&Row { seq, first: 0, count: length, logits: false });
        for layer in 0..self.layers.len() {
            self.keys_values(seq, layer)?.reserve(0, length.cast_signed())?;
        }
        Ok(())
    }
}

impl LayerCache {
    const fn new(shape: &LayerShape) -> Self {
        match *shape {
            LayerShape::KeysValues(shape) => {
                Self::KeysValues(KeysValues { shape, arrays: None, capacity: 0 })
            }
            LayerShape::Recurrent => Self::Recurrent(Recurrent { arrays: None }),
        }
    }

    const fn arrays(&self) -> Option<&[Array; 2]> {
        match self {
            Self::KeysValues(cached) => cached.arrays.as_ref(),
            Self::Recurrent(cached) => cached.arrays.as_ref(),
        }
    }
}

impl KeysValues {
    /// Writes `keys` and `values`, both `[1, kv heads, n, head dim]`, at position `first` and gives
    /// views of all positions up to their end.
    pub(super) fn update(
        &mut self,
        first: i32,
        keys: &Array,
        values: &Array,
    ) -> Result<[Array; 2], EngineError> {
        let end = first + keys.dim(2);
        let shape = self.shape;
        self.reserve(first, end)?;
        let Some([old_keys, old_values]) = self.arrays.take() else {
            return Err(EngineError::Internal("a reserved cache is empty"));
        };
        let (start, stop) = ([0, 0, first, 0], [1, shape.kv_heads, end, shape.head_dim]);
        let stored = [
            ffi::slice_update(old_keys, keys, &start, &stop)?,
            ffi::slice_update(old_values, values, &start, &stop)?,
        ];
        let [all_keys, all_values] = self.arrays.insert(stored);
        Ok([ffi::slice(all_keys, &[0; 4], &stop)?, ffi::slice(all_values, &[0; 4], &stop)?])
    }

    /// Makes room for positions up to `end`, keeping the first `kept`.
    fn reserve(&mut self, kept: i32, end: i32) -> Result<(), EngineError> {
        let shape = self.shape;
        if self.arrays.is_some() && end <= self.capacity {
            return Ok(());
        }
        let capacity = grown(self.capacity, end);
        let full = |capacity| [1, shape.kv_heads, capacity, shape.head_dim];
        self.arrays = Some(match self.arrays.take().filter(|_| kept > 0) {
            None => [zeros(&full(capacity), shape.dtype)?, zeros(&full(capacity), shape.dtype)?],
            Some(arrays) => {
                // What was cached stays whole, so that the copy is one block per head.
                let more = full(capacity - self.capacity);
                let grow = |array| {
                    Ok::<_, EngineError>(ops::concatenate(&[array, zeros(&more, shape.dtype)?], 2)?)
                };
                let [keys, values] = arrays;
                [grow(keys)?, grow(values)?]
            }
        });
        self.capacity = capacity;
        Ok(())
    }
}

/// Growing copies what is cached. A quarter more each time bounds those copies to a few per
/// position, and the upper limit bounds what lies idle at long contexts.
fn grown(capacity: i32, needed: i32) -> i32 {
    let step = (capacity / 4).clamp(BLOCK, GROWTH_MAX);
    let wanted = needed.max(if capacity == 0 { 0 } else { capacity.saturating_add(step) });
    wanted.saturating_add(BLOCK - 1) / BLOCK * BLOCK
}

fn zeros(shape: &[i32], dtype: Dtype) -> Result<Array, EngineError> {
    Ok(ops::zeros_dtype(shape, dtype)?)
}

/// Capacities are multiples of this many positions.
const BLOCK: i32 = 256;
const GROWTH_MAX: i32 = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_grows_in_blocks_and_by_a_quarter() {
        for (capacity, needed, expected) in [
            (0, 1, 256),
            (0, 256, 256),
            (0, 257, 512),
            (256, 257, 512),
            (2048, 2049, 2560),
            (16_384, 16_385, 18_432),
            (256, 5000, 5120),
        ] {
            assert_eq!(grown(capacity, needed), expected, "{capacity} → {needed}");
        }
    }
}
