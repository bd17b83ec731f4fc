//! The machine's own `ssh`, for what our client does not do. It gets its arguments one by one, never
//! through a shell on this side, and asks the person itself; what it says goes where ours goes.

use std::process::Stdio;

use tokio::process::Command;

use super::destination::Destination;
use super::error::SshError;
use super::running::{Ending, Running};

#[derive(Debug)]
pub struct SystemSsh {
    to: Destination,
}

impl SystemSsh {
    pub fn new(to: Destination) -> Self {
        Self { to }
    }

    /// Runs `command` by the login shell there.
    pub fn start(&self, command: &str) -> Result<Running, SshError> {
        let mut child = Command::new("ssh")
            .args(arguments(&self.to, command))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(SshError::NoSystemSsh)?;
        let gone = || SshError::Protocol("its pipes are gone".to_owned());
        let input = child.stdin.take().ok_or_else(gone)?;
        let output = child.stdout.take().ok_or_else(gone)?;
        let ending = tokio::spawn(async move {
            let status = child.wait().await.ok().and_then(|status| status.code());
            // 255 is its own, for a connection that failed.
            let status =
                status.and_then(|code| u32::try_from(code).ok()).filter(|code| *code != 255);
            Ending { status, said: String::new() }
        });
        Ok(Running::new(input, output, ending))
    }
}

fn arguments(to: &Destination, command: &str) -> Vec<String> {
    // No terminal, no forwarding of anything, and no command but ours.
    let mut words = ["-T", "-a", "-x", "-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none"]
        .map(str::to_owned)
        .to_vec();
    if let Some(port) = to.port {
        words.extend(["-p".to_owned(), port.to_string()]);
    }
    if let Some(user) = &to.user {
        words.extend(["-l".to_owned(), user.clone()]);
    }
    words.extend(["--".to_owned(), to.host.clone(), command.to_owned()]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_never_an_option() {
        let words = |to: &str| arguments(&to.parse().expect("good"), "exec sh -c 'x y'");
        let given = words("anna@mini:2222");
        let end = &given[given.len() - 7..];
        assert_eq!(end, ["-p", "2222", "-l", "anna", "--", "mini", "exec sh -c 'x y'"]);
        assert!(!words("mini").contains(&"-l".to_owned()));
    }
}
