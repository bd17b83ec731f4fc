//! Both forms of the delta rule against its definition, in f64.

use super::*;

const SIZES: Sizes = Sizes { key_heads: 2, shared_by: 2, key_dim: 8, value_dim: 4, on_gpu: false };

/// What a test feeds: rows of one token behind the other.
struct Plain {
    tokens: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    log_decay: Vec<f32>,
    beta: Vec<f32>,
}

impl Plain {
    /// Keys and queries of length one. `alike`: all tokens have the same, nothing is forgotten and
    /// everything corrected, which is where a careless inverse runs away.
    fn new(tokens: usize, alike: bool) -> Self {
        let mut state = 7_u32;
        let mut unit = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).expect("16 bits")) / 32_768.0 - 1.0
        };
        let mut vectors = || {
            let mut all = Vec::new();
            for _ in 0..2 * tokens {
                let vector: Vec<f32> = (0..8).map(|_| unit()).collect();
                let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
                all.extend(vector.iter().map(|x| x / length));
            }
            all
        };
        let (mut queries, mut keys) = (vectors(), vectors());
        let values = (0..tokens * 16).map(|_| unit()).collect();
        let mut log_decay: Vec<f32> = (0..tokens * 4).map(|_| unit() - 1.0).collect();
        let mut beta: Vec<f32> = (0..tokens * 4).map(|_| 0.5 + 0.5 * unit()).collect();
        if alike {
            for vectors in [&mut queries, &mut keys] {
                let first = vectors[..16].to_vec();
                vectors.chunks_mut(16).for_each(|vector| vector.copy_from_slice(&first));
            }
            log_decay.fill(0.0);
            beta.fill(1.0);
        }
        Self { tokens, queries, keys, values, log_decay, beta }
    }

    fn inputs(&self, from: usize, to: usize) -> Inputs {
        let count = i32::try_from(to - from).expect("few");
        let part = |all: &[f32], shape: &[i32]| {
            let width = usize::try_from(shape.iter().product::<i32>()).expect("small");
            let shape = [&[count], shape].concat();
            Array::from_slice(&all[from * width..to * width], &shape)
        };
        Inputs {
            queries: part(&self.queries, &[2, 8]),
            keys: part(&self.keys, &[2, 8]),
            values: part(&self.values, &[4, 4]),
            log_decay: part(&self.log_decay, &[4]),
            beta: part(&self.beta, &[4]),
        }
    }

    /// The outputs and the last state, `[value head, key dim, value dim]`.
    fn defined(&self) -> (Vec<f64>, Vec<f64>) {
        let mut outputs = vec![0.0; self.tokens * 16];
        let mut states = Vec::new();
        for head in 0..4 {
            let mut state = [[0.0_f64; 4]; 8];
            for token in 0..self.tokens {
                let of = |all: &[f32]| -> Vec<f64> {
                    let start = (token * 2 + head / 2) * 8;
                    all[start..start + 8].iter().map(|x| f64::from(*x)).collect()
                };
                let (query, key) = (of(&self.queries), of(&self.keys));
                let decay = f64::from(self.log_decay[token * 4 + head]).exp();
                let beta = f64::from(self.beta[token * 4 + head]);
                for column in 0..4 {
                    for row in &mut state {
                        row[column] *= decay;
                    }
                    let read: f64 = state.iter().zip(&key).map(|(row, k)| row[column] * k).sum();
                    let value = f64::from(self.values[(token * 4 + head) * 4 + column]);
                    let correction = beta * (value - read);
                    state.iter_mut().zip(&key).for_each(|(row, k)| row[column] += k * correction);
                    let output: f64 =
                        state.iter().zip(&query).map(|(row, q)| row[column] * q).sum();
                    outputs[(token * 4 + head) * 4 + column] = output / 8_f64.sqrt();
                }
            }
            states.extend(state.iter().flatten());
        }
        (outputs, states)
    }
}

fn assert_close(what: &str, got: &Array, want: &[f64]) {
    let whole = got.contiguous().and_then(|array| array.reshape(&[-1])).expect("a copy");
    whole.eval().expect("computed");
    let got = whole.try_as_slice::<f32>().expect("f32");
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() <= 2e-5, "{what}: {got} and {want}");
    }
}

#[test]
fn both_forms_do_what_the_rule_says() {
    for (tokens, alike) in
        [(1, false), (2, false), (7, false), (64, false), (150, false), (130, true)]
    {
        let plain = Plain::new(tokens, alike);
        let (outputs, states) = plain.defined();
        let what = |form: &str| format!("{form} of {tokens}, alike: {alike}");

        let [at_once, state] = chunks(SIZES, &plain.inputs(0, tokens), None).expect("computed");
        assert_close(&what("chunks"), &at_once, &outputs);
        assert_close(&what("state of chunks"), &state, &states);

        let mut state = ops::zeros::<f32>(&SIZES.state()).expect("zeros");
        let mut each = Vec::new();
        for token in 0..tokens {
            let input = plain.inputs(token, token + 1);
            let [output, next] = step(SIZES, &input, &state).expect("computed");
            state = next;
            each.push(output);
        }
        assert_close(&what("steps"), &ops::concatenate(&each, 0).expect("joined"), &outputs);
        assert_close(&what("state of steps"), &state, &states);

        // From a state on, in pieces of other sizes.
        let mut state = None;
        let mut pieces = Vec::new();
        for from in (0..tokens).step_by(37) {
            let input = plain.inputs(from, tokens.min(from + 37));
            let [output, next] = chunks(SIZES, &input, state.as_ref()).expect("computed");
            state = Some(next);
            pieces.push(output);
        }
        assert_close(&what("pieces"), &ops::concatenate(&pieces, 0).expect("joined"), &outputs);
    }
}
