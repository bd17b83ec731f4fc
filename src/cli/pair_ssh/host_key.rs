//! A host that is not known yet: somebody has to say that its key is the right one.

use std::path::Path;

use super::person::Person;
use crate::cli::introduction::refusal;
use crate::cli::{Failure, render};
use crate::ssh::{Ask, NewHostKey, Settings, SshError};

/// Remembers a new host's key, if somebody has said that it is the right one: by the fingerprint `wanted`,
/// or now.
pub(super) fn accept(
    wanted: Option<&str>,
    new: Box<NewHostKey>,
    settings: &Settings,
    person: &mut Person,
) -> Result<Box<NewHostKey>, Failure> {
    let refused = |message: String, hint: &str| Err(Failure::Refused(refusal(message, &[hint])));
    match wanted {
        Some(wanted) if wanted == new.fingerprint => {}
        Some(wanted) => {
            let message = format!(
                "{} shows the {} key {}, and --accept-new-host-key says {wanted}",
                new.name(),
                new.kind(),
                new.fingerprint
            );
            return refused(message, "nothing was accepted: is it another machine?");
        }
        None if new.refused_by_config => {
            let message = SshError::NewHostKey(new).to_string();
            return refused(
                message,
                "StrictHostKeyChecking in ~/.ssh/config says that nobody is asked",
            );
        }
        None if settings.batch || !person.is_there() => {
            return Err(SshError::NewHostKey(new).into());
        }
        None => {
            let (name, kind) = (new.name(), new.kind());
            let question = format!(
                "{name} is not known yet. It shows the {kind} key\n  {}\nIs that its key?",
                new.fingerprint
            );
            if !person.agrees(&question) {
                return refused(
                    format!("{name} was not accepted; nothing was changed"),
                    "`ssh-keygen -lf` there, of /etc/ssh/ssh_host_*_key.pub, shows its fingerprints",
                );
            }
        }
    }
    // Some keep none of them, as for machines that are set up anew each day.
    if [Path::new(""), Path::new("/dev/null")].contains(&new.file()) {
        return Ok(new);
    }
    new.remember().map_err(|error| {
        anyhow::anyhow!("cannot write the host key to {}: {error}", new.file().display())
    })?;
    render::note(&format!("{} is known from now on ({})", new.name(), new.file().display()));
    Ok(new)
}
