"""What people read: numbers and names in words, HTML that is safe, and tables."""
