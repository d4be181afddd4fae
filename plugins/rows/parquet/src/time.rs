// Dates and times in ISO 8601.
use std::fmt::Write;

// Days since 1970-01-01 as a date of the proleptic Gregorian calendar (civil_from_days of Howard Hinnant's
// "chrono-compatible low-level date algorithms").
pub fn put_date(days: i64, out: &mut String) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let _ = write!(out, "{year:04}-{month:02}-{day:02}");
}

// Time since midnight; the fraction is written only if it is not 0.
pub fn put_time(value: i64, per_second: i64, out: &mut String) {
    let (seconds, fraction) = (value.div_euclid(per_second), value.rem_euclid(per_second));
    let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction > 0 {
        let digits = per_second.ilog10() as usize;
        let _ = write!(out, ".{fraction:0digits$}");
    }
}

pub fn put_timestamp(value: i64, per_second: i64, utc: bool, out: &mut String) {
    let day = per_second * 86_400;
    put_date(value.div_euclid(day), out);
    out.push('T');
    put_time(value.rem_euclid(day), per_second, out);
    if utc {
        out.push('Z');
    }
}
