// Regions of the page that change while it is looked at.
