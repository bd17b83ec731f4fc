//! Looks at what [`crate::doctor`] judges: disk, descriptors, models, and on a Mac its firewall, bridges,
//! services and routes.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::Resource;

use super::os;
use crate::doctor::System;

/// Blocks for milliseconds, on a Mac for a second.
pub fn system(home: &Path, peers: &[SocketAddr]) -> System {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("daisy"));
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let volume = rustix::fs::statvfs(home).ok();
    let system = System {
        program: program.display().to_string(),
        free_bytes: volume.map(|volume| volume.f_bavail.saturating_mul(volume.f_frsize)),
        open_files_max: rustix::process::getrlimit(Resource::Nofile).current,
        unreadable: unreadable(&home.join("models")),
        unix_s: since_epoch.as_secs(),
        ..System::default()
    };
    os::look(system, peers)
}

/// Models whose config this program may not open.
fn unreadable(models: &Path) -> Vec<(String, String)> {
    let fault =
        |path: &Path, error: &std::io::Error| (path.display().to_string(), error.to_string());
    let entries = match fs::read_dir(models) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![fault(models, &error)],
    };
    let folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let closed = folders.filter_map(|path| {
        let error = File::open(path.join("config.json")).err()?;
        // A folder without one is no model.
        (error.kind() != std::io::ErrorKind::NotFound).then(|| fault(&path, &error))
    });
    closed.take(UNREADABLE_MAX).collect()
}

/// One remedy helps them all.
const UNREADABLE_MAX: usize = 4;
