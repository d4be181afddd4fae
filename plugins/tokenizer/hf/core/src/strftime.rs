//! strftime_now of chat templates: datetime.strftime of the C locale, in UTC.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Time {
    year: i64,
    month: i64, // 1 … 12
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    weekday: i64, // 0 is Sunday
    yearday: i64, // 0 … 365
}

/// Days since 1970-01-01 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468
}

impl Time {
    fn new(unix_time_s: i64) -> Time {
        let (num_days, second) = (unix_time_s.div_euclid(86400), unix_time_s.rem_euclid(86400));
        let mut year = 1970 + num_days.div_euclid(366);
        while days(year + 1, 1, 1) <= num_days {
            year += 1;
        }
        let month = (2..=12).take_while(|month| days(year, *month, 1) <= num_days).last().unwrap_or(1);
        Time {
            year,
            month,
            day: num_days - days(year, month, 1) + 1,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
            weekday: (num_days + 4).rem_euclid(7),
            yearday: num_days - days(year, 1, 1),
        }
    }

    /// The year and week of ISO 8601.
    fn iso(&self) -> (i64, i64) {
        let monday_based = (self.weekday + 6) % 7;
        let thursday = days(self.year, 1, 1) + self.yearday - monday_based + 3;
        let year = Time::new(thursday * 86400).year;
        (year, (thursday - days(year, 1, 1)) / 7 + 1)
    }
}

pub(crate) fn strftime(format: &str, unix_time_s: i64) -> String {
    // The range of years of Python's datetime.
    let time = Time::new(unix_time_s.clamp(-62135596800, 253402300799));
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut padding = None;
        let mut field = rest.next();
        if let Some(flag) = field.filter(|flag| "-_0".contains(*flag)) {
            padding = Some(flag);
            field = rest.next();
        }
        match field {
            Some(field) => write_field(&mut out, &time, unix_time_s, field, padding),
            None => out.push('%'),
        }
    }
    out
}

fn write_field(out: &mut String, time: &Time, unix_time_s: i64, field: char, padding: Option<char>) {
    let number = |value: i64, width: usize, fill: char| match padding.unwrap_or(fill) {
        '-' => value.to_string(),
        '_' => format!("{value:width$}"),
        ' ' => format!("{value:width$}"),
        _ => format!("{value:0width$}"),
    };
    let hour12 = (time.hour + 11) % 12 + 1;
    let again = |format: &str| strftime(format, unix_time_s);
    let text = match field {
        'Y' => time.year.to_string(),
        'y' => number(time.year.rem_euclid(100), 2, '0'),
        'C' => number(time.year.div_euclid(100), 2, '0'),
        'm' => number(time.month, 2, '0'),
        'd' => number(time.day, 2, '0'),
        'e' => number(time.day, 2, ' '),
        'H' => number(time.hour, 2, '0'),
        'k' => number(time.hour, 2, ' '),
        'I' => number(hour12, 2, '0'),
        'l' => number(hour12, 2, ' '),
        'M' => number(time.minute, 2, '0'),
        'S' => number(time.second, 2, '0'),
        'f' => "000000".to_owned(),
        'j' => number(time.yearday + 1, 3, '0'),
        'U' => number((time.yearday + 7 - time.weekday) / 7, 2, '0'),
        'W' => number((time.yearday + 7 - (time.weekday + 6) % 7) / 7, 2, '0'),
        'V' => number(time.iso().1, 2, '0'),
        'G' => time.iso().0.to_string(),
        'u' => ((time.weekday + 6) % 7 + 1).to_string(),
        'w' => time.weekday.to_string(),
        'B' => MONTHS[time.month as usize - 1].to_owned(),
        'b' | 'h' => MONTHS[time.month as usize - 1][..3].to_owned(),
        'A' => DAYS[time.weekday as usize].to_owned(),
        'a' => DAYS[time.weekday as usize][..3].to_owned(),
        'p' => if time.hour < 12 { "AM" } else { "PM" }.to_owned(),
        'P' => if time.hour < 12 { "am" } else { "pm" }.to_owned(),
        's' => unix_time_s.to_string(),
        'z' | 'Z' => String::new(), // a time without a zone, as datetime.now() is
        'F' => again("%Y-%m-%d"),
        'D' | 'x' => again("%m/%d/%y"),
        'T' | 'X' => again("%H:%M:%S"),
        'R' => again("%H:%M"),
        'r' => again("%I:%M:%S %p"),
        'c' => again("%a %b %e %H:%M:%S %Y"),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        other => format!("%{}{other}", padding.map(String::from).unwrap_or_default()),
    };
    out.push_str(&text);
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_equal_those_of_python() {
        let parts =
            ["%Y-%m-%d %H:%M:%S", "%a %A %b %B", "%j %U %W %V %G %u %w %y %p %I %e %-d %-m", "%D %T %F %R", "%c"];
        for (time, expected) in [
            (
                0,
                [
                    "1970-01-01 00:00:00",
                    "Thu Thursday Jan January",
                    "001 00 00 01 1970 4 4 70 AM 12  1 1 1",
                    "01/01/70 00:00:00 1970-01-01 00:00",
                    "Thu Jan  1 00:00:00 1970",
                ],
            ),
            (
                1709251199,
                [
                    "2024-02-29 23:59:59",
                    "Thu Thursday Feb February",
                    "060 08 09 09 2024 4 4 24 PM 11 29 29 2",
                    "02/29/24 23:59:59 2024-02-29 23:59",
                    "Thu Feb 29 23:59:59 2024",
                ],
            ),
            (
                1735646400,
                [
                    "2024-12-31 12:00:00",
                    "Tue Tuesday Dec December",
                    "366 52 53 01 2025 2 2 24 PM 12 31 31 12",
                    "12/31/24 12:00:00 2024-12-31 12:00",
                    "Tue Dec 31 12:00:00 2024",
                ],
            ),
            (
                -1,
                [
                    "1969-12-31 23:59:59",
                    "Wed Wednesday Dec December",
                    "365 52 52 01 1970 3 3 69 PM 11 31 31 12",
                    "12/31/69 23:59:59 1969-12-31 23:59",
                    "Wed Dec 31 23:59:59 1969",
                ],
            ),
        ] {
            assert_eq!(parts.map(|part| strftime(part, time)), expected);
        }
        assert_eq!(strftime("100%% %Q%", 0), "100% %Q%");
    }
}
