//! Marks: private-use characters that stand in a rendered text where a span begins or ends, and are then removed.
use crate::error::{Error, Result};
use std::cell::Cell;

thread_local! {
    /// The marks between which the output of `generation` blocks is put.
    pub(crate) static AROUND_GENERATION: Cell<Option<(char, char)>> = const { Cell::new(None) };
}

/// All marks are at or above this character, and no other character is.
pub(crate) const FIRST_MARK: char = '\u{f0000}';

/// The number of pairs in one private plane.
const NUM_PAIRS: usize = 0x7ff0;

/// One private plane of Unicode that no text of the conversation uses.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    plane: u32,
}

/// A text without its marks, and where they stood: (byte, pair, whether it closes).
pub(crate) struct Unmarked {
    pub(crate) text: String,
    pub(crate) places: Vec<(usize, usize, bool)>,
}

impl Marks {
    pub(crate) fn unused_in(texts: &[&str]) -> Result<Marks> {
        let unused = |plane: &u32| !texts.iter().any(|text| text.chars().any(|c| c as u32 >> 16 == *plane));
        let plane = [0xf, 0x10].into_iter().find(unused);
        plane.map(|plane| Marks { plane }).ok_or_else(|| {
            Error::precondition("the conversation uses both private planes of Unicode, which spans need one of")
        })
    }

    pub(crate) fn pair(self, i: usize) -> Result<(char, char)> {
        if i >= NUM_PAIRS {
            return Err(Error::precondition(format!("spans of more than {NUM_PAIRS} parts of a conversation")));
        }
        let mark = |offset: u32| char::from_u32((self.plane << 16) + 2 * i as u32 + offset).unwrap_or(FIRST_MARK);
        Ok((mark(0), mark(1)))
    }

    pub(crate) fn take_out(self, marked: &str) -> Unmarked {
        let mut text = String::with_capacity(marked.len());
        let mut places = Vec::new();
        for c in marked.chars() {
            if c as u32 >> 16 == self.plane {
                let offset = c as u32 & 0xffff;
                places.push((text.len(), offset as usize / 2, offset % 2 == 1));
            } else {
                text.push(c);
            }
        }
        Unmarked { text, places }
    }
}

impl Unmarked {
    /// Ranges of pair `i`, or none if its marks do not alternate.
    pub(crate) fn ranges(&self, i: usize) -> Option<Vec<(usize, usize)>> {
        let mine: Vec<(usize, bool)> =
            self.places.iter().filter(|(_, pair, _)| *pair == i).map(|(at, _, closes)| (*at, *closes)).collect();
        ranges_between(&mine)
    }

    /// The same for each of the first pairs; takes no longer than for one.
    pub(crate) fn all_ranges(&self, num_pairs: usize) -> Vec<Option<Vec<(usize, usize)>>> {
        let mut of_pairs: Vec<Vec<(usize, bool)>> = vec![Vec::new(); num_pairs];
        for (at, pair, closes) in &self.places {
            if let Some(mine) = of_pairs.get_mut(*pair) {
                mine.push((*at, *closes));
            }
        }
        of_pairs.iter().map(|mine| ranges_between(mine)).collect()
    }
}

/// `marks`: those of one pair, in their order: (byte, whether it closes).
fn ranges_between(marks: &[(usize, bool)]) -> Option<Vec<(usize, usize)>> {
    let ranges: Vec<_> = marks.chunks(2).filter(|two| two.len() == 2 && !two[0].1 && two[1].1).collect();
    (ranges.len() * 2 == marks.len()).then(|| ranges.iter().map(|two| (two[0].0, two[1].0)).collect())
}
