"""What the pages are made with: checks of exercises, the style of figures, figures with sliders."""
