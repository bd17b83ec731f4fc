//! When a stranger may be paired: while a code is shown, and while an invitation is open. A state
//! machine: time and secrets are arguments. Start at [`Windows::take`].

use std::time::Duration;

use daisy_proto::pair::Secret;

#[derive(Debug, Default)]
pub(super) struct Windows {
    code: Option<CodeWindow>,
    invitations: Vec<Invitation>,
}

struct CodeWindow {
    secret: Vec<u8>,
    /// Left; one is taken when an exchange begins, since whoever breaks one off has had its guess.
    tries: u8,
    until: Duration,
}

pub(super) struct Invitation {
    pub(super) number: [u8; 8],
    pub(super) secret: [u8; 16],
    pub(super) until: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum WindowError {
    #[error("a code is shown already; end the other `daisy cluster pair` first")]
    Shown,
    #[error("{INVITATIONS_MAX} invitations are open; wait until one has expired")]
    TooMany,
}

impl Windows {
    pub(super) fn is_open(&self, now: Duration) -> bool {
        self.code.as_ref().is_some_and(|code| code.is_open(now))
            || self.invitations.iter().any(|invitation| now < invitation.until)
    }

    pub(super) fn show(&mut self, secret: Vec<u8>, now: Duration) -> Result<(), WindowError> {
        if self.code.as_ref().is_some_and(|code| code.is_open(now)) {
            return Err(WindowError::Shown);
        }
        self.code = Some(CodeWindow { secret, tries: TRIES_MAX, until: now + CODE_SHOWN });
        Ok(())
    }

    pub(super) fn hide(&mut self) {
        self.code = None;
    }

    pub(super) fn invite(&mut self, new: Invitation, now: Duration) -> Result<(), WindowError> {
        self.invitations.retain(|invitation| now < invitation.until);
        if self.invitations.len() >= INVITATIONS_MAX {
            return Err(WindowError::TooMany);
        }
        self.invitations.push(new);
        Ok(())
    }

    /// The secret for one exchange; none when there is no such window, or no try is left.
    pub(super) fn take(&mut self, secret: Secret, now: Duration) -> Option<Vec<u8>> {
        match secret {
            Secret::Code => {
                let code = self.code.as_mut().filter(|code| code.is_open(now))?;
                code.tries -= 1;
                Some(code.secret.clone())
            }
            Secret::Invitation(number) => {
                let open = |invitation: &&Invitation| {
                    invitation.number == number && now < invitation.until
                };
                self.invitations.iter().find(open).map(|invitation| invitation.secret.to_vec())
            }
        }
    }

    /// An exchange went well: true for the first one alone. The window is closed from here on.
    pub(super) fn claim(&mut self, secret: Secret, now: Duration) -> bool {
        match secret {
            Secret::Code => self.code.take().is_some_and(|code| now < code.until),
            Secret::Invitation(number) => {
                let before = self.invitations.len();
                self.invitations
                    .retain(|invitation| invitation.number != number || invitation.until <= now);
                self.invitations.len() < before
            }
        }
    }

    /// An exchange failed; says whether it was the last try of the code.
    pub(super) fn failed(&mut self, secret: Secret) -> bool {
        let is_last = secret == Secret::Code && self.code.as_ref().is_some_and(|c| c.tries == 0);
        if is_last {
            self.code = None;
        }
        is_last
    }
}

impl CodeWindow {
    fn is_open(&self, now: Duration) -> bool {
        now < self.until && self.tries > 0
    }
}

impl std::fmt::Debug for CodeWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CodeWindow").field("tries", &self.tries).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Invitation").field("until", &self.until).finish_non_exhaustive()
    }
}

pub(super) const CODE_SHOWN: Duration = Duration::from_mins(2);
const TRIES_MAX: u8 = 3;
const INVITATIONS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn invitation(n: u8, until: Duration) -> Invitation {
        Invitation { number: [n; 8], secret: [n; 16], until }
    }

    #[test]
    fn a_code_has_three_tries_and_two_minutes() {
        let mut windows = Windows::default();
        assert_eq!(windows.take(Secret::Code, NOW), None);
        windows.show(b"417209".to_vec(), NOW).expect("shown");
        assert_eq!(windows.show(b"1".to_vec(), NOW), Err(WindowError::Shown));
        for last in [false, false, true] {
            assert_eq!(windows.take(Secret::Code, NOW).as_deref(), Some(&b"417209"[..]));
            assert_eq!(windows.failed(Secret::Code), last);
        }
        assert!(!windows.is_open(NOW));
        assert_eq!(windows.take(Secret::Code, NOW), None, "a fourth try");
        assert!(!windows.claim(Secret::Code, NOW));
        windows.show(b"2".to_vec(), NOW).expect("a new code");
        let late = NOW + CODE_SHOWN;
        assert!(windows.is_open(NOW + Duration::from_secs(119)) && !windows.is_open(late));
        assert_eq!(windows.take(Secret::Code, late), None);
        assert!(!windows.claim(Secret::Code, late), "an exchange that ends too late");
    }

    #[test]
    fn tries_at_the_same_time_count_each() {
        let mut windows = Windows::default();
        windows.show(b"1".to_vec(), NOW).expect("shown");
        let taken = (0..10).filter(|_| windows.take(Secret::Code, NOW).is_some()).count();
        assert_eq!(taken, 3);
        assert!(windows.claim(Secret::Code, NOW), "one of the three may still be right");
        assert!(!windows.claim(Secret::Code, NOW), "but only one");
    }

    #[test]
    fn an_invitation_is_for_one_node_and_expires() {
        let mut windows = Windows::default();
        let until = NOW + Duration::from_mins(10);
        let (one, two) = (Secret::Invitation([1; 8]), Secret::Invitation([2; 8]));
        windows.invite(invitation(1, until), NOW).expect("open");
        windows.invite(invitation(2, until), NOW).expect("open");
        assert_eq!(windows.take(one, NOW), Some(vec![1; 16]));
        assert_eq!(windows.take(Secret::Invitation([3; 8]), NOW), None);
        assert!(!windows.failed(one), "a wrong secret of 128 bits closes nothing");
        assert!(windows.claim(one, NOW) && !windows.claim(one, NOW));
        assert_eq!(windows.take(one, NOW), None, "used");
        assert!(windows.is_open(NOW));
        assert_eq!(windows.take(two, until), None, "expired");
        assert!(!windows.claim(two, until));
        assert!(!windows.is_open(until));
    }

    #[test]
    fn open_invitations_are_bounded() {
        let mut windows = Windows::default();
        for n in 0..16 {
            windows.invite(invitation(n, NOW * 2), NOW).expect("open");
        }
        assert_eq!(windows.invite(invitation(99, NOW * 3), NOW), Err(WindowError::TooMany));
        windows.invite(invitation(99, NOW * 3), NOW * 2).expect("the others have expired");
    }
}
