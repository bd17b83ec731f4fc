//! What a person types or pastes: a code of six digits, or the token of an invitation.

use daisy_proto::NodeId;
use data_encoding::BASE32_NOPAD;

/// An invitation as text: who made it, which it is, and its secret. Bound to the issuer's key: the
/// joining node talks to no other one.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) issuer: NodeId,
    pub(super) number: [u8; 8],
    pub(super) secret: [u8; 16],
}

impl Token {
    pub(super) fn text(&self) -> String {
        let bytes = [&self.issuer.0[..], &self.number, &self.secret].concat();
        format!("{PREFIX}{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let letters = text.trim().strip_prefix(PREFIX)?.to_ascii_uppercase();
        let bytes = BASE32_NOPAD.decode(letters.as_bytes()).ok()?;
        let (issuer, rest) = bytes.split_first_chunk::<32>()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let secret = rest.try_into().ok()?;
        Some(Self { issuer: NodeId(*issuer), number: *number, secret })
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// Six digits, as people read them out.
pub(super) fn code_text(random: u64) -> String {
    let number = random % 1_000_000;
    format!("{:03}-{:03}", number / 1000, number % 1000)
}

/// The secret within a code, however it was typed; none when it is no code.
pub(super) fn code_secret(typed: &str) -> Option<Vec<u8>> {
    let is_between = |c: char| c == '-' || c.is_whitespace();
    let digits: String = typed.chars().filter(|&c| !is_between(c)).collect();
    let is_code = digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_digit());
    is_code.then(|| digits.into_bytes())
}

const PREFIX: &str = "daisy-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_shows_nothing_in_a_log() {
        let token = Token { issuer: NodeId([7; 32]), number: [8; 8], secret: [0xab; 16] };
        let text = token.text();
        assert_eq!(
            Token::parse(&format!(
                " {} \n",
                text.to_ascii_uppercase().replacen("DAISY", "daisy", 1)
            )),
            Some(token.clone())
        );
        assert!(!format!("{token:?}").contains("171"));
        for bad in
            ["", "daisy-", "daisy-abc", &text[1..], &text[..text.len() - 1], &format!("{text}a")]
        {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn codes_are_read_as_people_type_them() {
        assert_eq!(code_text(417_209), "417-209");
        assert_eq!(code_text(5_000_007), "000-007");
        for good in ["417-209", "417209", " 417 209\n"] {
            assert_eq!(code_secret(good).as_deref(), Some(&b"417209"[..]), "{good:?}");
        }
        for bad in ["", "41720", "4172091", "abc-def", "４１７-209", "-rf"] {
            assert_eq!(code_secret(bad), None, "{bad:?}");
        }
    }
}
