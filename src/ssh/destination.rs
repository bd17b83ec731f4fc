//! Where to: `user@host`, as a person types it. Whatever passes here can stand on a command line.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// A user's account on a machine; user and port may still come from `~/.ssh/config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    pub user: Option<String>,
    /// A name or an address, without brackets; may be an alias of `~/.ssh/config`.
    pub host: String,
    pub port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a machine to reach over SSH: {why}; write USER@HOST or USER@HOST:PORT")]
pub struct DestinationError {
    text: String,
    why: &'static str,
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|why| DestinationError {
            text: text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS_MAX).collect(),
            why,
        })
    }
}

fn parse(text: &str) -> Result<Destination, &'static str> {
    let (user, rest) = match text.rsplit_once('@') {
        Some((user, rest)) => (Some(user.to_owned()), rest),
        None => (None, text),
    };
    if let Some(user) = &user {
        check_user(user)?;
    }
    let (host, port) = if let Some(bracketed) = rest.strip_prefix('[') {
        let (host, port) = bracketed.split_once(']').ok_or("a bracket is not closed")?;
        match port.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if port.is_empty() => (host, None),
            None => return Err("something follows the bracket"),
        }
    } else {
        match rest.split_once(':') {
            // A second colon: an IPv6 address without a port.
            Some((_, port)) if port.contains(':') => (rest, None),
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        }
    };
    check_host(host)?;
    let port = match port {
        None => None,
        Some(digits) => {
            Some(port_number(digits).ok_or("the port is not a number from 1 to 65535")?)
        }
    };
    Ok(Destination { user, host: host.to_owned(), port })
}

pub(super) fn port_number(digits: &str) -> Option<u16> {
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|port| is_number && *port != 0)
}

/// A name that `ssh` cannot take for an option, nor a shell (of a `ProxyCommand`, say) for more than a word.
pub(super) fn check_host(host: &str) -> Result<(), &'static str> {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    if host.is_empty() {
        Err("there is no host in it")
    } else if host.len() > HOST_BYTES_MAX {
        Err("the host's name is too long")
    } else if host.starts_with('-') {
        Err("the host looks like an option")
    } else if !host.chars().all(is_usual) {
        Err("the host has a character that host names do not have")
    } else if host.contains(':') && host.split('%').next().and_then(address_v6).is_none() {
        Err("that is no IPv6 address")
    } else {
        Ok(())
    }
}

fn address_v6(text: &str) -> Option<Ipv6Addr> {
    text.parse().ok()
}

pub(super) fn check_user(user: &str) -> Result<(), &'static str> {
    let is_usual = |c: char| !c.is_control() && !c.is_whitespace() && !META.contains(c);
    if user.is_empty() {
        Err("the user's name is empty")
    } else if user.len() > USER_BYTES_MAX {
        Err("the user's name is too long")
    } else if user.starts_with('-') {
        Err("the user looks like an option")
    } else if !user.chars().all(is_usual) {
        Err("the user's name has a character that shells give a meaning")
    } else {
        Ok(())
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

const META: &str = "'`\"$\\;&<>|(){}[]*?!~#%:";
const TEXT_CHARS_MAX: usize = 80;
const HOST_BYTES_MAX: usize = 255;
const USER_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read_as_people_write_them() {
        let to = |user: Option<&str>, host: &str, port| Destination {
            user: user.map(str::to_owned),
            host: host.to_owned(),
            port,
        };
        for (text, expected) in [
            ("anna@mini.local", to(Some("anna"), "mini.local", None)),
            ("mini", to(None, "mini", None)),
            ("anna@mini:2222", to(Some("anna"), "mini", Some(2222))),
            ("anna@192.168.7.2", to(Some("anna"), "192.168.7.2", None)),
            ("anna@fe80::1%en0", to(Some("anna"), "fe80::1%en0", None)),
            ("anna@[fe80::1%en0]:22", to(Some("anna"), "fe80::1%en0", Some(22))),
            ("a@b@mini", to(Some("a@b"), "mini", None)),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            let shown = expected.to_string();
            assert_eq!(shown.parse(), Ok(expected), "{shown}");
        }
    }

    #[test]
    fn what_could_be_an_option_or_a_command_is_refused() {
        let long = format!("a@{}", "x".repeat(256));
        for (text, why) in [
            ("", "no host"),
            ("anna@", "no host"),
            ("@mini", "empty"),
            ("-oProxyCommand=touch", "option"),
            ("anna@-oProxyCommand=touch", "option"),
            ("anna@[-x]:22", "option"),
            ("-anna@mini", "option"),
            ("anna@mini;reboot", "character"),
            ("anna@$(reboot)", "character"),
            ("an na@mini", "character"),
            ("a`id`@mini", "character"),
            ("anna@mini\n", "character"),
            ("anna@mini:0", "port"),
            ("anna@mini:", "port"),
            ("anna@mini:+22", "port"),
            ("anna@mini:65536", "port"),
            ("anna@[::1", "bracket"),
            ("anna@[::1]x", "bracket"),
            ("anna@mini:22:23", "IPv6"),
            (long.as_str(), "too long"),
        ] {
            let error = text.parse::<Destination>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(!error.contains('\n') && error.len() < 300, "{error}");
        }
    }
}
