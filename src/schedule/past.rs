//! What a sequence has said so far, as penalties ask for it: each token once, with how often.

/// Tokens of a prompt and of the answer to it, sorted by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Past {
    /// Token and how often it stands in the answer: 0 for one that is in the prompt alone. At most
    /// as many entries as the context has positions.
    counts: Vec<(u32, u32)>,
}

impl Past {
    pub(super) fn of_prompt(prompt: &[u32]) -> Self {
        let mut tokens = prompt.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        Self { counts: tokens.into_iter().map(|token| (token, 0)).collect() }
    }

    /// Takes up a token of the answer.
    pub(super) fn add(&mut self, token: u32) {
        match self.counts.binary_search_by_key(&token, |(token, _)| *token) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (token, 1)),
        }
    }

    pub(super) fn counts(&self) -> &[(u32, u32)] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_there_once() {
        let mut past = Past::of_prompt(&[5, 3, 5, 9]);
        assert_eq!(past.counts(), [(3, 0), (5, 0), (9, 0)]);
        for token in [5, 7, 5, 2] {
            past.add(token);
        }
        assert_eq!(past.counts(), [(2, 1), (3, 0), (5, 2), (7, 1), (9, 0)]);
        assert_eq!(Past::default().counts(), []);
    }
}
