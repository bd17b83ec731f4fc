//! Keys and values of the sequences that run: preallocated, written in place, trimmed by position.
//!
//! Each layer of a sequence has one array of keys and one of values, `[1, kv heads, capacity, head
//! dim]`, of which the first `length` positions count. A step writes its positions into them;
//! MLX does that without a copy as long as nothing else holds the old array, which is why the
//! cache gives its handle away before each update and why readers get views that die with the step.
//! Trimming only moves the length: what lies behind is overwritten later.

use std::collections::HashMap;

use daisy_proto::{Row, SeqId};
use mlx_rs::{Array, Dtype, ops};

use super::error::EngineError;
use super::ffi;

/// The caches of all sequences of one rank.
pub(super) struct Caches {
    shape: CacheShape,
    layers: usize,
    sequences: HashMap<SeqId, SequenceCache>,
}

/// What all layers have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheShape {
    pub(super) kv_heads: i32,
    pub(super) head_dim: i32,
    pub(super) dtype: Dtype,
}

#[derive(Default)]
struct SequenceCache {
    length: u32,
    layers: Vec<LayerCache>,
}

/// One layer's keys and values of one sequence; empty until its first step.
#[derive(Default)]
pub(super) struct LayerCache {
    arrays: Option<[Array; 2]>,
    capacity: i32,
}

impl Caches {
    pub(super) fn new(shape: CacheShape, layers: usize) -> Self {
        Self { shape, layers, sequences: HashMap::new() }
    }

    /// Whether `row` continues what is cached; changes nothing.
    pub(super) fn check(&self, row: &Row) -> Result<(), EngineError> {
        let cached = self.length(row.seq);
        if row.first > cached {
            return Err(EngineError::Gap { seq: row.seq, first: row.first, cached });
        }
        Ok(())
    }

    /// Trims to `row.first` and counts the row's positions in; its keys and values follow by layer.
    pub(super) fn begin(&mut self, row: &Row) {
        let layers = self.layers;
        let sequence = self.sequences.entry(row.seq).or_default();
        sequence.layers.resize_with(layers, LayerCache::default);
        sequence.length = row.first + row.count;
    }

    pub(super) fn layer(
        &mut self,
        seq: SeqId,
        layer: usize,
    ) -> Result<&mut LayerCache, EngineError> {
        let sequence = self.sequences.get_mut(&seq).and_then(|found| found.layers.get_mut(layer));
        sequence.ok_or(EngineError::Internal("a row's sequence has no cache"))
    }

    /// The arrays that `rows` wrote to.
    pub(super) fn updated<'a>(&'a self, rows: &'a [Row]) -> impl Iterator<Item = &'a Array> {
        rows.iter()
            .filter_map(|row| self.sequences.get(&row.seq))
            .flat_map(|sequence| &sequence.layers)
            .filter_map(|layer| layer.arrays.as_ref())
            .flatten()
    }

    pub(super) fn length(&self, seq: SeqId) -> u32 {
        self.sequences.get(&seq).map_or(0, |sequence| sequence.length)
    }

    pub(super) fn release(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }

    pub(super) const fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Pretends that `seq` has so many positions, all zero.
    #[cfg(test)]
    pub(super) fn fill(&mut self, seq: SeqId, length: u32) -> Result<(), EngineError> {
        self.begin(&Row { seq, first: 0, count: length, logits: false });
        let (shape, layers) = (self.shape, self.layers);
        for layer in 0..layers {
            self.layer(seq, layer)?.reserve(shape, 0, length.cast_signed())?;
        }
        Ok(())
    }
}

impl LayerCache {
    /// Writes `keys` and `values`, both `[1, kv heads, n, head dim]`, at position `first` and gives
    /// views of all positions up to their end.
    pub(super) fn update(
        &mut self,
        shape: CacheShape,
        first: i32,
        keys: &Array,
        values: &Array,
    ) -> Result<[Array; 2], EngineError> {
        let end = first + keys.dim(2);
        self.reserve(shape, first, end)?;
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
    fn reserve(&mut self, shape: CacheShape, kept: i32, end: i32) -> Result<(), EngineError> {
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
