"""What every plan is made of and judged by, below packing and strategies. It knows no paper."""
