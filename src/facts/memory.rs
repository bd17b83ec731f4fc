//! Memory of a Mac: `vm_stat` and the names of `sysctl`.

use daisy_proto::Pressure;

/// The pages of `vm_stat` that nobody else can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmStat {
    page_bytes: u64,
    pages_used: u64,
}

impl VmStat {
    /// Needs the page size and all three counts: a sum without one of them would promise memory that
    /// is taken.
    pub fn parse(text: &str) -> Option<Self> {
        let header = text.lines().next()?.split_once("page size of ")?.1;
        let page_bytes = header.split(' ').next()?.parse().ok()?;
        let pages = |name: &str| -> Option<u64> {
            let row = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = row.into_iter().find(|(key, _)| key.trim() == name)?;
            value.trim().trim_end_matches('.').parse().ok()
        };
        // Not "stored in compressor": those pages are counted as they were before.
        let pages_used = pages("Pages wired down")?
            .checked_add(pages("Anonymous pages")?)?
            .checked_add(pages("Pages occupied by compressor")?)?;
        Some(Self { page_bytes, pages_used })
    }

    /// File-backed pages count as free.
    pub fn available_bytes(self, memory_bytes: u64) -> u64 {
        memory_bytes.saturating_sub(self.pages_used.saturating_mul(self.page_bytes))
    }
}

/// What the wanted names of `sysctl` say. It prints the ones that exist, whatever its exit code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sysctl {
    pub memory_bytes: Option<u64>,
    pub swap_used_bytes: Option<u64>,
    pub pressure: Option<Pressure>,
    /// None where the system's own default holds.
    pub wired_limit_bytes: Option<u64>,
    /// Metal's memory limit can be set here, so there is a GPU that shares the machine's memory.
    pub has_gpu: bool,
    pub chip: Option<String>,
    /// Of the CPU.
    pub cores: Option<u64>,
    pub os: Option<String>,
}

impl Sysctl {
    pub const NAMES: &[&str] = &[
        "hw.memsize",
        "vm.swapusage",
        "kern.memorystatus_vm_pressure_level",
        "iogpu.wired_limit_mb",
        "machdep.cpu.brand_string",
        "hw.physicalcpu",
        "kern.osversion",
        "kern.osproductversion",
    ];

    pub fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let rows = text.lines().filter_map(|line| line.split_once(": "));
            rows.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.trim())
        };
        let number = |name: &str| value(name)?.parse::<u64>().ok();
        let wired_limit_mb = number("iogpu.wired_limit_mb");
        let os = value("kern.osproductversion").map(|version| {
            let build = value("kern.osversion").map_or_else(String::new, |b| format!(" ({b})"));
            format!("macOS {version}{build}")
        });
        Self {
            memory_bytes: number("hw.memsize"),
            swap_used_bytes: value("vm.swapusage").and_then(swap_used_bytes),
            pressure: number("kern.memorystatus_vm_pressure_level").and_then(pressure),
            wired_limit_bytes: wired_limit_mb.filter(|mb| *mb > 0).map(|mb| mb << 20),
            has_gpu: wired_limit_mb.is_some(),
            chip: value("machdep.cpu.brand_string").map(str::to_owned),
            cores: number("hw.physicalcpu"),
            os,
        }
    }

    /// What Metal lets a process hold: the limit that was set, else its default, which is about this
    /// share of the memory.
    pub fn gpu_limit_bytes(&self) -> Option<u64> {
        let default = || self.memory_bytes.filter(|_| self.has_gpu).map(|bytes| bytes / 4 * 3);
        self.wired_limit_bytes.or_else(default)
    }
}

/// `total = 2048,00M  used = 1121,88M …`: the system's language decides the decimal mark.
fn swap_used_bytes(text: &str) -> Option<u64> {
    let used = text.split_once("used = ")?.1.split(' ').next()?;
    let unit = used.find(|c: char| c.is_ascii_alphabetic())?;
    let shift = match &used[unit..] {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    let (whole, part) = used[..unit].split_once(['.', ',']).unwrap_or((&used[..unit], "0"));
    let hundredths = match part.len() {
        1 => part.parse::<u64>().ok()? * 10,
        2 => part.parse().ok()?,
        _ => return None,
    };
    let units = whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths)?;
    Some(units.checked_mul(1 << shift)? / 100)
}

/// The levels are bits.
fn pressure(level: u64) -> Option<Pressure> {
    match level {
        1 => Some(Pressure::Normal),
        2 => Some(Pressure::Warning),
        4 => Some(Pressure::Critical),
        _ => None,
    }
}
