//! Power of a Mac: `pmset -g batt` and `pmset -g`.

use daisy_proto::Power;

/// From `pmset -g batt` and `pmset -g`. A machine without a battery is on mains, never unknown.
pub fn parse(batteries: &str, settings: &str) -> Option<Power> {
    let source = batteries.lines().next()?.split('\'').nth(1)?;
    let charge = batteries.lines().skip(1).find_map(|line| {
        // The name of the battery may hold blanks; a tab stands before the percentage.
        line.split_once('\t')?.1.split_once('%')?.0.trim().parse().ok()
    });
    Some(Power {
        on_battery: source != "AC Power",
        charge_percent: charge,
        low_power: is_low_power(settings),
    })
}

/// `lowpowermode 1` on some Macs, `powermode 1` on others (0 automatic, 2 high).
fn is_low_power(settings: &str) -> bool {
    settings
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .any(|(key, value)| matches!(key, "lowpowermode" | "powermode") && value.trim() == "1")
}
